"""Tasks on processes of their own: Python's parser and a tokenizer use one core each."""

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from olmo_hydra.config.errors import RunFailed
from olmo_hydra.data.signals import STOPPING, kept_from_children

Task = tuple[str, tuple[Any, ...]]  # what messages call it, and the arguments of the function
IN_PROCESS = 1.0  # seconds: most text for a laptop is prepared before other processes would have started
COMMAND = "import sys; from olmo_hydra.data.text import workers; workers.serve(int(sys.argv[1]))"


class Workers:
    """Runs tasks: in this process for a second, and on up to `count` others what is left then.

    They are not `multiprocessing`'s, which would run the script again that called us. A context: leaving it ends them.
    """

    def __init__(self, count: int):
        self._count = count
        self._until = time.monotonic() + IN_PROCESS
        self._started: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for connection, process in self._started.items():
            process.kill()
            process.wait()
            connection.close()

    def run(self, function: Callable[..., None], tasks: Sequence[Task]) -> Iterator[int]:
        """Calls `function` with the arguments of every task; gives a task's number when it is done, in any order.

        Raises:
          RunFailed: A process has died, and names its task.
          Exception: What a task has raised.
        """
        waiting = iter(enumerate(tasks))
        for number, (name, arguments) in waiting:
            if self._count > 1 and number + 1 < len(tasks) and (self._started or time.monotonic() > self._until):
                yield from self._spread(function, tasks, number)
                return
            try:
                function(*arguments)
            except Exception as error:
                error.add_note(f"while preparing {name}")
                raise
            yield number

    def _spread(self, function: Callable[..., None], tasks: Sequence[Task], first: int) -> Iterator[int]:
        waiting = list(range(len(tasks) - 1, first - 1, -1))
        while len(self._started) < min(self._count, len(waiting)):
            self._start()
        running: dict[Connection, int] = {}

        def give(connection: Connection) -> None:
            if waiting:
                running[connection] = waiting.pop()
                try:
                    connection.send((function, *tasks[running[connection]]))
                except (BrokenPipeError, ConnectionResetError):
                    raise self._died(connection, tasks[running[connection]][0]) from None

        for connection in self._started:
            give(connection)
        while running:
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                number = running.pop(ready)
                try:
                    error = ready.recv()
                except (EOFError, ConnectionResetError):
                    raise self._died(ready, tasks[number][0]) from None
                if error is not None:
                    raise error
                give(ready)
                yield number

    def _start(self) -> None:
        ours, theirs = Pipe()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TOKENIZERS_PARALLELISM": "0",
        }
        command = [sys.executable, "-c", COMMAND, str(theirs.fileno())]
        # These are for the first process, which ends the others.
        with theirs, kept_from_children(*STOPPING):
            self._started[ours] = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def _died(self, connection: Connection, name: str) -> RunFailed:
        status = self._started[connection].wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        memory = ", which the system does where memory is short (fewer --workers take less)"
        return RunFailed(
            f"the process that prepared {name} {how}{memory if status == -signal.SIGKILL else ''}; "
            "what was finished stays, and the same command continues"
        )


def serve(descriptor: int) -> None:
    """The whole life of a worker: tasks come and answers go over a connection, None or an exception."""
    connection = Connection(descriptor)
    try:
        while True:
            function, name, arguments = connection.recv()
            try:
                function(*arguments)
                answer = None
            except Exception as error:
                error.add_note(f"while preparing {name}\n{traceback.format_exc()}")
                answer = _portable(error)
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the first process has ended
        return


def _portable(error: Exception) -> Exception:
    """The exception, or what it says where it cannot be sent."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
