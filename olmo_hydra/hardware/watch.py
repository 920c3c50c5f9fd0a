"""Ends the processes of a run together: when one is killed, freezes or fails, the others say which, and exit at once.

A collective operation waits for ever for a process that is gone: with gloo only its neighbours in the ring notice, and
JAX's own heartbeat takes minutes. So every process keeps a connection to process 0. The kernel closes the connection
of a process that dies; one that is frozen sends no beats.
"""

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.hardware.environment import from_environment
from olmo_hydra.hardware.processes import SECONDS_TO_JOIN, Processes

log = logging.getLogger(__name__)
BEAT = 1.0  # seconds
GRACE = 3 * BEAT  # for a process to find out by itself what another one tells it
SECONDS_TO_END = 180.0  # of a process that has failed: W&B's last upload, the report
FAILED, WRONG_REQUEST = 1, 2

Message = dict[str, Any]


class Watch:
    """Watches over the other processes of a run, in a thread, while the block lasts. Nothing where there are none.

    Whoever leaves the block without `over` having been called has failed, and the others end too, with its status.

    Args:
      processes: Of the run.
      timeout: Seconds without a sign of life after which a process counts as frozen.

    Attributes:
      when_lost: Told on process 0 what has happened, as an event and in words, just before the process ends. It runs in
        the thread.
    """

    def __init__(self, processes: Processes, timeout: float):
        self.when_lost: Callable[[str, str], None] = lambda event, text: None
        self._processes, self._timeout = processes, timeout
        self._others: dict[int, _Other] = {}
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        if self._processes.count > 1:
            if self._processes.first:
                self._others = _everybody(self._processes)
            else:
                self._others = {0: _process_0(self._processes)}
            threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.failed(error)

    def failed(self, error: BaseException | None) -> None:
        """This process has failed, or stops alone. The others end at once, and it may not wait for them anywhere."""
        if not self._others:
            return
        if not isinstance(error, (RequestError, RunFailed, KeyboardInterrupt)):
            # Perhaps an operation that failed for want of another process: the thread is about to know, and ends this.
            self._over.wait(GRACE)
        if self._over.is_set():
            return
        self._over.set()
        event = getattr(error, "event", "failed")  # of a stop
        status = getattr(error, "status", WRONG_REQUEST if isinstance(error, RequestError) else FAILED)
        text = f"process {self._processes.index} {event}: {type(error).__name__}: {error}"
        self._tell({"lost": text, "event": event, "status": status})
        # A stop leaves nothing to be put away.
        end = threading.Timer(SECONDS_TO_END if event == "failed" else GRACE, self._leave, [text, status])
        end.daemon = True
        end.start()

    def over(self) -> None:
        """The end has come that all processes have agreed on: from now on each may leave when it likes."""
        self._over.set()
        self._tell({"over": True})

    def _watch(self) -> None:
        turn = beaten = time.monotonic()
        while self._others and not self._over.is_set():
            readable, _, _ = select.select(self._others.values(), [], [], BEAT)
            now = time.monotonic()
            slept, turn = now - turn > GRACE, now
            for index, other in list(self._others.items()):
                if other in readable:
                    self._hear(index, other)
                elif slept:  # this process was frozen itself, perhaps with all others: they get their time anew
                    other.heard = now
                elif now - other.heard > self._timeout:
                    text = f"process {index} ({other.who}) has given no sign of life for {self._timeout:g} s"
                    self._end(text, frozen=other.who)
            if now - beaten >= BEAT:
                beaten = now
                self._tell({})

    def _hear(self, index: int, other: "_Other") -> None:
        messages = other.receive()
        if messages is None:
            self._end(f"process {index} ({other.who}) is gone")
        for message in messages or []:
            if "lost" in message:
                if self._processes.first:  # which may be about to fail in the same way, and says it better
                    self._over.wait(GRACE)
                self._end(message["lost"], message["event"], message["status"], told=True)
            elif "over" in message:
                self._others.pop(index, None)

    def _tell(self, message: Message) -> None:
        for other in list(self._others.values()):
            other.send(message)

    def _end(
        self, text: str, event: str = "failed", status: int = FAILED, *, told: bool = False, frozen: str | None = None
    ) -> None:
        """Ends this process and, from process 0, the others, which say it in their logs alone; and who is frozen."""
        if self._over.is_set():
            return
        self._over.set()
        try:
            if self._processes.first:
                self._tell({"lost": text, "event": event, "status": status})
            log.error(text)
            if self._processes.first:
                self.when_lost(event, text)
        finally:
            quiet = told and not self._processes.first
            goes_on = "" if told else "; the same command continues from the last checkpoint"
            self._leave("" if quiet else f"{event}: {text}{goes_on}", status, frozen)

    def _leave(self, text: str, status: int, frozen: str | None = None) -> None:
        """Ends this process from any thread: the main one may wait in an operation that never ends.

        Who is frozen may wake up again, alone: it is killed first, as far as possible. It may have started this one.
        """
        if text:
            me = "" if self._processes.first else f"process {self._processes.index}: "
            with contextlib.suppress(OSError):
                os.write(2, f"\n{me}{text}\n".encode())
        if frozen:
            _kill(frozen)
        os._exit(status)


class _Other:
    """A connection to another process, over which lines of JSON go. A beat is an empty one."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(SECONDS_TO_JOIN)
        self.who = "unknown"
        self._connection, self._unread = connection, b""
        self.heard = time.monotonic()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Sends a message, unless nobody is there: whoever watches notices that."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def first_message(self) -> Message:
        """The message that comes first; beats may have come with it. Raises LookupError if none does."""
        self._connection.settimeout(GRACE)  # a stranger, who says nothing, keeps the others waiting
        while (messages := self.receive()) == []:
            pass
        self._connection.settimeout(SECONDS_TO_JOIN)
        return (messages or [])[0]

    def receive(self) -> list[Message] | None:
        """The messages that have come, once something has; None at the end of the connection."""
        try:
            read = self._connection.recv(1 << 16)
        except OSError:
            read = b""
        if not read:
            return None
        self.heard = time.monotonic()
        *lines, self._unread = (self._unread + read).split(b"\n")
        return [json.loads(line) for line in lines]


def _everybody(processes: Processes) -> dict[int, _Other]:
    """On process 0: the connections to all others. Whoever does not know the run's token is turned away."""
    place, token = from_environment(), secrets.token_hex(16)
    host = socket.gethostname() if place is None or place.coordinator is None else place.coordinator.rpartition(":")[0]
    found: dict[int, _Other] = {}
    with socket.create_server(("", 0), backlog=processes.count) as server:
        server.settimeout(SECONDS_TO_JOIN)
        processes.agreed("watch", lambda: [host, server.getsockname()[1], token, _who()])
        while len(found) < processes.count - 1:
            try:
                other = _Other(server.accept()[0])
            except TimeoutError as error:
                missing = sorted(set(range(1, processes.count)) - set(found))
                raise RequestError(f"processes {missing} do not reach process 0 at {host}") from error
            with contextlib.suppress(ValueError, LookupError, TypeError):  # of a stranger
                hello = other.first_message()
                if hello["token"] == token:
                    other.who = hello["who"]
                    found[hello["process"]] = other
    return found


def _process_0(processes: Processes) -> _Other:
    """On another process: the connection to process 0."""
    host, port, token, who = processes.agreed("watch", lambda: None)
    try:
        other = _Other(socket.create_connection((host, port), timeout=SECONDS_TO_JOIN))
    except OSError as error:
        raise RequestError(f"process 0 ({who}) cannot be reached at {host}:{port}: {error}") from error
    other.who = who
    other.send({"process": processes.index, "who": _who(), "token": token})
    return other


def _who() -> str:
    return f"pid {os.getpid()} on host {socket.gethostname()}"


def _kill(who: str) -> None:
    """Kills a process, by what `_who` said there, if it is on this host and of this program."""
    pid = who.removeprefix("pid ").partition(" ")[0]
    if who == f"pid {pid} on host {socket.gethostname()}":
        with contextlib.suppress(OSError, ValueError):
            theirs, ours = (Path("/proc", name, "cmdline").read_bytes().split(b"\0") for name in (pid, "self"))
            if theirs[1:] == ours[1:]:
                os.kill(int(pid), signal.SIGKILL)
