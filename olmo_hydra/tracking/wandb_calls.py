"""A thread for the calls of the W&B client, so that nobody waits for them longer than they choose.

The client itself waits without limit in places: to tell its service process of a run, and for a full socket to it.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class Calls:
    """Makes the calls that are submitted, one after another, in a thread that ends with the process."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future, Callable[[], object]]] = SimpleQueue()
        threading.Thread(target=self._work, name="wandb", daemon=True).start()

    def submit(self, call: Callable[[], Result]) -> "Future[Result]":
        """What `call` will return or raise. Never waits."""
        future: Future[Result] = Future()
        self._queue.put((future, call))
        return future

    def _work(self) -> None:
        while True:
            future, call = self._queue.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def end_service() -> None:
    """Ends the client's service process, which does not answer: at its exit Python would wait for it without limit."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
            if name == "wandb-core" and int(rest.split()[1]) == os.getpid():
                os.kill(int(status.parent.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile
            continue
