"""Time spent training, apart from compiling, evaluating and saving."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """A stopwatch with laps that leaves out what happens inside `paused()`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, pauses excluded."""
        now = time.perf_counter()
        seconds, self._start = now - self._start, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Everything inside is left out of the current lap."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before
