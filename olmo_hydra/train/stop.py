"""Being asked to stop: by Ctrl-C, or by a scheduler that wants the machine back."""

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from olmo_hydra.hardware.environment import have_met

if TYPE_CHECKING:  # importing it imports JAX
    from olmo_hydra.hardware.processes import Processes

PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h, "try again later": a scheduler that reads it runs the command again
INTERRUPTED = 128 + signal.SIGINT
SHOW_CURSOR = b"\x1b[?25h"  # the progress bar had hidden it


# JAX agrees on a number that every process has yet to ask with. It never goes back: a run goes on at any update, and a
# sweep has several runs.
_asked = itertools.count()


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and goes on when the same command is given again.

    A `KeyboardInterrupt`, whatever the signal: libraries let that pass, and clean up after it.

    Attributes:
      signal: The one that came first.
      saved: The last update, whose state is saved; None if there was nothing to save.
      event: What the run's events call it.
      status: What the command exits with.
    """

    def __init__(self, number: signal.Signals, saved: int | None):
        self.signal, self.saved = number, saved
        is_user = number is signal.SIGINT
        self.event = "interrupted" if is_user else "preempted"
        self.status = INTERRUPTED if is_user else PREEMPTED
        when = "at once, with nothing to save" if saved is None else f"after update {saved}, which is saved"
        super().__init__(f"{self.event} by {number.name} {when}: the same command continues")


class StopRequest:
    """Turns a signal into a stop that loses nothing. A context; only the main thread may enter it.

    Until `defer` is called there is nothing to save, and the first SIGINT, SIGTERM, SIGUSR1 or SIGUSR2 ends the process
    at once, from a thread: an error raised out of a handler would turn up inside the start of an extension, or in a
    callback of XLA that drops it. After that `asked` tells of it, and while the stop is under way further signals
    change nothing, but for SIGINT: Ctrl-C, again, ends the process at once, whatever the main thread is doing.

    Attributes:
      signal: The signal that came first after `defer`, or None.
      since: When it came, on the clock of `time.monotonic`.
      agreed: Whether the loop was told to stop.
      at_once: Told of a stop with nothing to save, just before the process ends. It runs in the thread.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.since = 0.0
        self.agreed = False
        self.at_once: Callable[[Stopped], None] = lambda stopped: None
        self._deferred = False
        self._came_before = False  # a signal, before `defer`
        self._previous: dict[int, object] = {}
        self._shared: Processes | None = None
        self._is_first_time = True

    def __enter__(self) -> "StopRequest":
        # Python runs handlers in the main thread, which may sit in a compilation for minutes. The numbers of signals
        # are written to this socket when they come.
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._handle) for number in _ours()}
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in _ours():
            signal.signal(number, self._previous[number])  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup)
        self._writes.close()  # ends the watcher
        self._watcher.join()
        self._reads.close()

    def share(self, processes: "Processes") -> None:
        """From now on all processes of the run stop after the same update, whichever of them was asked to.

        JAX agrees on it (`reached_preemption_sync_point`) from a SIGTERM: other signals become that one.
        """
        self._shared = processes if processes.count > 1 else None

    def defer(self) -> None:
        """From now on there is something to save: a signal waits until `asked` is."""
        self._deferred = True

    def asked(self) -> bool:
        """Whether the run shall stop now. The loop asks once an update, in every process."""
        self.agreed = self.agreed or (self.signal is not None if self._shared is None else self._have_agreed())
        return self.agreed

    def ends_sweep(self) -> signal.Signals | None:
        """The signal after which the next run of a sweep shall not begin: of many processes none may think so alone."""
        return self.signal if self._shared is None or self.agreed else None

    def _have_agreed(self) -> bool:
        assert self._shared is not None
        from jax.experimental import multihost_utils

        if self._is_first_time:  # what gloo connects has to come within 30 s, and one may have compiled for longer
            self._is_first_time = False
            self._shared.barrier("loop")
        if not multihost_utils.reached_preemption_sync_point(next(_asked)):
            return False
        mine = (self.signal, time.monotonic() - self.since) if self.signal else (None, 0.0)
        came, ago = zip(*self._shared.gathered("signals", mine), strict=True)
        known = [number for number in came if number is not None]  # where it was not SIGTERM, which is JAX's
        self.signal = signal.SIGINT if signal.SIGINT in known else signal.Signals((known or [signal.SIGTERM])[0])
        self.since = time.monotonic() - max(ago)
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            self._came_before = True  # the thread may look only once `defer` was called
            return
        if self.signal is not None:
            return
        self.signal, self.since = signal.Signals(number), time.monotonic()
        if self._shared is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        _say(f"{self.signal.name}: stopping once the update at hand is saved; Ctrl-C again stops at once")

    def _watch(self) -> None:
        is_first = True
        while numbers := self._reads.recv(1):
            if numbers[0] not in _ours():
                continue
            if not self._deferred or self._came_before:
                stopped = Stopped(signal.Signals(numbers[0]), None)
                with contextlib.suppress(Exception):  # a disk that is full
                    self.at_once(stopped)
                _leave(stopped.status, str(stopped))
            if not is_first and numbers[0] == signal.SIGINT:
                _leave(INTERRUPTED, "stopped at once; the same command goes on from what is saved")
            is_first = False


def _ours() -> tuple[signal.Signals, ...]:
    """The signals to handle. Once processes have met, SIGTERM is JAX's: a handler of Python's would put its own out."""
    others = signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2
    return others if have_met() else (*others, signal.SIGTERM)


def _leave(status: int, text: str) -> None:
    """Ends the process from any thread, as a kill would."""
    if os.isatty(2):
        os.write(2, SHOW_CURSOR)
    _say(text)
    os._exit(status)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # not `print`: the signal may have come in the middle of one
        os.write(2, f"\n{text}\n".encode())
