"""Which process of a run this one is, as whoever started it says. Knows no JAX."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from olmo_hydra.config.errors import RequestError

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@dataclass(frozen=True)
class Place:
    """A process among `count`; `coordinator` (host:port) where it was said, else JAX finds it."""

    index: int
    count: int
    coordinator: str | None

    def variables(self) -> dict[str, str]:
        """The environment by which a process finds itself at this place."""
        assert self.coordinator is not None
        return dict(zip(VARIABLES, (self.coordinator, str(self.count), str(self.index)), strict=True))


parted = False  # whether the processes that had met do nothing together any more


def have_met() -> bool:
    """Whether JAX has brought several processes together; also once they have parted."""
    # Not `jax.distributed.is_initialized`: that is true while JAX still waits for them. Of a module that is just being
    # imported the attribute is absent.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return parted or (state is not None and state.preemption_sync_manager is not None)


def is_first() -> bool:
    """Whether this is process 0 of its run. On a pod of TPUs only JAX can tell, once the processes have met."""
    if have_met():
        return bool(sys.modules["jax"].process_index() == 0)
    place = from_environment()
    return place is None or place.index == 0


def from_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that the variables above give, or a step of Slurm with several tasks; None: neither does.

    Raises:
      RequestError: The variables contradict one another.
    """
    given = [name for name in VARIABLES if environment.get(name)]
    if given:
        if lacking := [name for name in VARIABLES if name not in given]:
            every = f"all of {', '.join(VARIABLES)}, or none of them"
            raise RequestError(f"the environment has {given[0]} and not {lacking[0]}", instead=every)
        address = environment[VARIABLES[0]]
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise RequestError(
                f"{VARIABLES[0]}={address} is no address", instead="host:port, of a port of process 0's host"
            )
        return _place(environment, *VARIABLES[1:], address)
    # Slurm's variables without the number of a step's tasks are those of a batch script, which runs once.
    if "SLURM_STEP_NUM_TASKS" in environment:
        place = _place(environment, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", None)
        return place if place.count > 1 else None
    return None


def _place(environment: Mapping[str, str], counts: str, numbers: str, coordinator: str | None) -> Place:
    """The place that two variables give, the number of processes and that of this one."""
    count, index = (environment.get(name, "") for name in (counts, numbers))
    if not (count.isdecimal() and index.isdecimal() and int(index) < int(count)):
        raise RequestError(
            f"{numbers}={index} is no process of {counts}={count}",
            instead="processes are numbered from 0, below their number",
        )
    return Place(int(index), int(count), coordinator)
