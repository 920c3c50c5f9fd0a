"""A thread for the calls of the W&B client, so that nobody waits for them longer than they choose.

The client itself waits without limit in places: to tell its service process of a run, and for a full socket to it.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")
PATIENCE = 10.0  # seconds, with the client after its service has ended


class Calls:
    """Makes the calls that are submitted, one after another, in a thread: from the first one until `close`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future, Callable[[], object]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)

    def submit(self, call: Callable[[], Result]) -> "Future[Result]":
        """What `call` will return or raise. Never waits."""
        if self._thread.ident is None:
            self._thread.start()
        future: Future[Result] = Future()
        self._queue.put((future, call))
        return future

    def close(self) -> None:
        """Nothing more is submitted: the thread ends after the calls so far. Never waits."""
        self._queue.put(None)

    def _work(self) -> None:
        while (submitted := self._queue.get()) is not None:
            future, call = submitted
            try:
                future.set_result(call())
            except SystemExit as error:  # the client's way to tell that its service has ended
                future.set_exception(RuntimeError(f"the client exits: {error.code}"))
            except BaseException as error:
                future.set_exception(error)


def abandon() -> None:
    """Ends the client's service process, and with it all runs of this process, without a further word to the server.

    Of a service that does not answer, the client would wait for the end when Python exits, without limit.
    """
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
            if name == "wandb-core" and int(rest.split()[1]) == os.getpid():
                os.kill(int(status.parent.name), signal.SIGKILL)
    calls = Calls()
    with suppress(Exception):  # the service is gone
        calls.submit(_teardown).result(timeout=PATIENCE)
    calls.close()


def _teardown() -> None:
    import wandb

    wandb.teardown()
