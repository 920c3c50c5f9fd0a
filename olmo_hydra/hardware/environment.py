"""Which process of a run this one is, as whoever started it says. Knows no JAX."""

import os
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


def from_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that the variables above give, or a step of Slurm with several tasks; None: neither does.

    Raises:
      RequestError: The variables contradict one another.
    """
    given = [name for name in VARIABLES if environment.get(name)]
    if given:
        return _explicit(environment, given)
    # Slurm's variables without the number of a step's tasks are those of a batch script, which runs once.
    if "SLURM_STEP_NUM_TASKS" in environment and int(environment["SLURM_STEP_NUM_TASKS"]) > 1:
        return Place(int(environment["SLURM_PROCID"]), int(environment["SLURM_STEP_NUM_TASKS"]), None)
    return None


def _explicit(environment: Mapping[str, str], given: list[str]) -> Place:
    every = f"all of {', '.join(VARIABLES)}, or none of them"
    if lacking := [name for name in VARIABLES if name not in given]:
        raise RequestError(f"the environment has {given[0]} and not {lacking[0]}", instead=every)
    address, *numbers = (environment[name] for name in VARIABLES)
    try:
        count, index = map(int, numbers)
        if not 0 <= index < count:
            raise ValueError
    except ValueError:
        raise RequestError(
            f"{VARIABLES[2]}={numbers[1]} is no process of {VARIABLES[1]}={numbers[0]}",
            instead="processes are numbered from 0, below their number",
        ) from None
    return Place(index, count, address)
