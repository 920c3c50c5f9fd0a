"""The run directory: where everything about one run lives, who may write it, and how its rows are read."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from olmo_hydra.config.errors import RequestError, printable
from olmo_hydra.tracking.documents import load_yaml
from olmo_hydra.tracking.files import make_folder, open_lock, open_to_read, refuse_foreign_link, writing
from olmo_hydra.tracking.rows import damaged, whole_lines

Kind = Literal["metrics", "throughput", "evals", "time", "events"]
State = Literal[
    "Not started", "Running", "Finished", "Paused", "Interrupted", "Preempted", "Failed", "Killed", "Weights"
]

MAX_WRITER = 300  # bytes of what a lock says of its holder

# Events after which nothing follows until the next start, and the state they leave a run in.
_ENDED: dict[str, State] = {
    "finished": "Finished",
    "paused": "Paused",
    "interrupted": "Interrupted",
    "preempted": "Preempted",
    "failed": "Failed",
    "imported": "Weights",  # it holds weights from elsewhere, and has never trained
}


class RunDir:
    """Paths inside one run directory, and the rows its jsonl files hold.

    Nothing is created here: a `RunDir` of a folder that does not exist has no rows and is not finished.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.overrides = self.path / "overrides.yaml"
        self.provenance = self.path / "provenance.json"
        self.metrics = self.path / "metrics.jsonl"
        self.throughput = self.path / "throughput.jsonl"
        self.evals = self.path / "evals.jsonl"
        self.time = self.path / "time.jsonl"
        self.events = self.path / "events.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.wandb = self.path / "wandb"
        self.logs = self.path / "logs"
        self.profile = self.path / "profile"
        self.report = self.path / "report.html"
        self.skipped_batches = self.path / "skipped.json"
        self.skipped_page = self.path / "skipped.html"

    def rows(self, kind: Kind) -> list[dict[str, Any]]:
        """The rows of one file, oldest first, without a torn last line; none when the file is not there.

        Raises:
          RequestError: The file was damaged, not merely cut off; or is not what a run writes (see `whole_lines`).
        """
        return [row for _, row in whole_lines(self.path / f"{kind}.jsonl")]

    def finished(self) -> bool:
        """Whether the run has recorded that it reached its last step.

        Raises:
          RequestError: As `rows`; or it is recorded of a step that is not the last one of the frozen config.
        """
        return "finished" in self._told()

    def state(self) -> tuple[State, str | None]:
        """What the run's events and its lock say of it, and the process that writes it (for a run at rest None).

        A process that is to resume a run holds it for some seconds before its first event; until then the state is
        still the old one. Raises RequestError as `finished`.
        """
        writer = self.writer()  # before the events: a run that ends in between was not killed
        kinds = [kind for kind in self._told() if kind in (*_ENDED, "started", "resumed")]
        if "finished" in kinds:
            return "Finished", writer
        if kinds and kinds[-1] in _ENDED:
            return _ENDED[kinds[-1]], writer
        if writer is not None:
            return "Running", writer
        return "Killed" if kinds else "Not started", None

    def _told(self) -> list[str]:
        """Which events the run has recorded, oldest first."""
        events = self.rows("events")
        ends = [number for number, row in enumerate(events, 1) if row["event"] == "finished"]
        steps = _steps(load_yaml(self.config)) if ends else None
        for number in ends:
            if steps is not None and (step := events[number - 1]["step"]) != steps:
                problem = f"has the end of the run after update {step:,}, and its config has {steps:,}"
                raise damaged(self.events, number, problem)
        return [row["event"] for row in events]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the directory for this process, so that two processes never append to one run.

        The kernel releases the lock when the process ends, however it ends. The folder is created if need be.

        Raises:
          RequestError: Another process is writing the run; or the folder, or one in it, is a link of somebody else.
        """
        make_folder(self.path)
        for folder in (self.path, self.checkpoints, self.wandb, self.logs):
            refuse_foreign_link(folder)
        with open_lock(self._lock) as file:
            for _ in range(5):  # `writer` of a reader may hold the lock for an instant
                if held := _flock(file.fileno(), fcntl.LOCK_EX):
                    break
                time.sleep(0.05)
            if not held:
                raise RequestError(
                    f"the run is being written by {self.writer() or 'another process'}",
                    where=str(self.path),
                    instead="wait for that process or stop it; run.tag=NAME starts another run of the same config",
                )
            with writing(self._lock):
                file.truncate(0)
                file.write(f"pid {os.getpid()} on host {socket.gethostname()}".encode())
            yield

    def writer(self) -> str | None:
        """The process that holds the lock (`pid 12 on host tpu-3`), or None when nobody is writing the run."""
        file = open_to_read(self._lock)
        if file is None:
            return None
        with file:
            if _flock(file.fileno(), fcntl.LOCK_SH):
                return None
            return printable(file.read(MAX_WRITER).decode(errors="replace")) or "another process"

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"


def _steps(config: Any) -> int | None:
    """`train.steps` of a frozen config, where it has one."""
    train = config.get("train") if isinstance(config, dict) else None
    steps = train.get("steps") if isinstance(train, dict) else None
    return steps if isinstance(steps, int) else None


def _flock(descriptor: int, operation: int) -> bool:
    """Takes a lock that lives as long as the open file; False when another open file holds it."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
