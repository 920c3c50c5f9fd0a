"""Where a process's wall time goes, and how long updates take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Spent = Literal["data", "compile", "eval", "save"]  # what is not spent on updates


class Clock:
    """A stopwatch of what a process spends its time on. One thing at a time: `spent` does not nest."""

    def __init__(self) -> None:
        self.began = self._lap = time.perf_counter()
        self.totals: dict[Spent, float] = {"data": 0.0, "compile": 0.0, "eval": 0.0, "save": 0.0}

    @contextmanager
    def spent(self, on: Spent) -> Iterator[None]:
        """Everything inside is counted as that and, but for waiting for data, left out of the current lap."""
        before = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - before
            self.totals[on] += seconds
            if on != "data":
                self._lap += seconds

    def lap(self) -> float:
        """Seconds since the last lap: of updates, with the waiting for their data."""
        now = time.perf_counter()
        seconds, self._lap = now - self._lap, now
        return seconds
