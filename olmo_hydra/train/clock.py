"""Where a process's wall time goes, and how long updates take."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import olmo_hydra

# In the order of a run: Python and its modules; the devices, the data and what else is there before the loop; a
# checkpoint or other weights; and in the loop, where `updates` is all that is nothing else. `ending` is W&B's last
# upload and the report.
Spent = Literal["import", "open", "restore", "compile", "data", "eval", "save", "updates", "ending"]


class Clock:
    """A stopwatch that always runs, on one thing at a time: the seconds of all of them are those since `began`.

    Args:
      began: When this start of the run began, on the clock of `time.perf_counter`; until now it was spent on `import`.
    """

    def __init__(self, began: float):
        self.step = 0  # updates that are done: the session, then the loop, says so
        self._state: tuple[dict[Spent, float], Spent, float] = (dict.fromkeys(get_args(Spent), 0.0), "import", began)
        self._lap = 0.0
        self.turn_to("open")

    def turn_to(self, on: Spent) -> Spent:
        """What follows is spent on that; returns what it was spent on until now."""
        now = time.perf_counter()
        seconds, before, since = self._state
        # One assignment: another thread reads it.
        self._state = ({**seconds, before: seconds[before] + now - since}, on, now)
        return before

    @contextmanager
    def spent(self, on: Spent) -> Iterator[None]:
        """Everything inside is spent on that, and what follows on what came before."""
        before = self.turn_to(on)
        try:
            yield
        finally:
            self.turn_to(before)

    def reading(self) -> dict[str, float]:
        """The `step` that is done, and the seconds spent on each thing until now. Any thread may ask."""
        seconds, on, since = self._state
        running = time.perf_counter() - since
        return {"step": self.step} | {name: value + running * (name == on) for name, value in seconds.items()}

    def lap(self) -> float:
        """Seconds since the last lap: of updates, with the waiting for their data."""
        reading = self.reading()
        before, self._lap = self._lap, reading["updates"] + reading["data"]
        return self._lap - before


def process_start() -> float:
    """When the kernel started this process, on the clock of `time.perf_counter`; elsewhere, when it was imported."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), seconds since the system started
        return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError):  # no such file, or no such clock: not Linux
        return olmo_hydra.IMPORTED


_BEGINS = [process_start()]


def start_begins() -> float:
    """When a start of a run begins: the first in a process with the process, the next cell of a sweep when it asks."""
    return _BEGINS.pop() if _BEGINS else time.perf_counter()
