"""The processes of a run: how they find one another, and agree."""

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from jax._src import distributed  # its store of keys and values has no public name

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig
from olmo_hydra.hardware import environment
from olmo_hydra.hardware.devices import configure
from olmo_hydra.hardware.environment import Place, from_environment

FOR_EVER_MS = 10**9  # nobody waits in vain: a process that is gone ends the others (`watch`)
SECONDS_TO_JOIN = 120

Made = TypeVar("Made")
_runs = itertools.count()


@dataclass(frozen=True)
class Processes:
    """A process of a run, and how many there are. Process 0 is the one that writes files.

    What the methods are given as `name` is used once in a run, by every process.
    """

    index: int = 0
    count: int = 1
    run: int = 0  # a sweep has several in one process

    @property
    def first(self) -> bool:
        """Whether this is process 0."""
        return self.index == 0

    def barrier(self, name: str) -> None:
        """Waits until every process is there."""
        if self.count > 1:
            _store().wait_at_barrier(self._key(name), FOR_EVER_MS)

    def in_turn(self, name: str, make: Callable[[], Made]) -> Made:
        """What each process makes for itself: process 0 first, so that the others find the files it has written."""
        if not self.first:
            self.barrier(name)
            return make()
        made = make()
        self.barrier(name)
        return made

    def agreed(self, name: str, decide: Callable[[], Any]) -> Any:
        """What process 0 decides, a JSON value, on every process."""
        if self.count == 1:
            return decide()
        if self.first:
            _store().key_value_set(self._key(name), json.dumps(decide()))
        return json.loads(_store().blocking_key_value_get(self._key(name), FOR_EVER_MS))

    def gathered(self, name: str, mine: Any) -> list[Any]:
        """The JSON values of all processes, in their order."""
        if self.count == 1:
            return [mine]
        keys = [self._key(f"{name}/{index}") for index in range(self.count)]
        _store().key_value_set(keys[self.index], json.dumps(mine))
        return [json.loads(_store().blocking_key_value_get(key, FOR_EVER_MS)) for key in keys]

    def part(self) -> None:
        """Waits for all processes, which do nothing together from then on: each ends when it likes.

        JAX would wait at the interpreter's end, where nobody watches over them any more.
        """
        if self.count > 1:
            _part()

    def _key(self, name: str) -> str:
        return f"olmo_hydra/{self.run}/{name}"


def part_within(seconds: float) -> bool:
    """Has the processes part where nobody watches over them. False if the others have not come in that time."""
    waiting = threading.Thread(target=_part, daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()


def _part() -> None:
    jax.distributed.shutdown()
    environment.parted = True


def join(cfg: HardwareConfig) -> Processes:
    """Brings the processes of the run together. Nothing may have asked JAX for its devices before.

    Raises:
      RequestError: Other than `hardware.processes` were started, or some do not come.
    """
    assert cfg.processes is not None
    place = from_environment()
    started = 1 if place is None else place.count
    if cfg.processes == started == 1:
        return Processes()
    if place is not None:
        _refuse_others(cfg.processes, started)
    configure(cfg)
    if not jax.distributed.is_initialized():
        _initialize(place, cfg.processes)
    _refuse_others(cfg.processes, jax.process_count())  # JAX may have found them by itself
    return Processes(jax.process_index(), jax.process_count(), next(_runs))


def _refuse_others(wanted: int, started: int) -> None:
    if wanted != started:
        raise RequestError(
            f"is not the {started} processes that were started",
            key="hardware.processes",
            value=wanted,
            instead=f"hardware.processes={started}, and in hardware.devices the devices of all of them together",
        )


def _initialize(place: Place | None, count: int) -> None:
    address, known, index = (place.coordinator, place.count, place.index) if place else (None, None, None)
    try:
        jax.distributed.initialize(address, known, index, initialization_timeout=SECONDS_TO_JOIN)
    except (RuntimeError, ValueError) as error:
        raise RequestError(
            f"the processes of the run did not come together: {str(error).splitlines()[0][:300]}",
            key="hardware.processes",
            value=count,
            instead=f"all {count} of them started at once, as docs/processes.md says",
        ) from error


def _store() -> Any:
    return distributed.global_state.client
