"""Being asked to stop: by Ctrl-C, or by a scheduler's SIGTERM."""

import contextlib
import os
import signal
from types import FrameType, TracebackType


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a flag that the loop reads once a step; a second SIGINT stops at once.

    Use as a context manager around the work; only the main thread may.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        with contextlib.suppress(OSError):  # not `print`: the signal may have come in the middle of one
            os.write(2, b"\nstopping once the update at hand is saved; Ctrl-C again stops at once\n")
