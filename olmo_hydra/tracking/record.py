"""The only writer of a run's jsonl files."""

import hashlib
import json
import math
import os
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.files import open_to_append, replace, writing
from olmo_hydra.tracking.rows import whole_lines
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]
Kept = dict[str, dict[str, Any]]  # by a file's name


class Record:
    """Appends rows to `metrics.jsonl`, `throughput.jsonl`, `evals.jsonl`, `time.jsonl` and events to `events.jsonl`.

    A row is one line, handed to the system in one write, so that only the last line of a killed run can be torn.
    Call `rewind` once before the first row.
    """

    def __init__(self, run_dir: RunDir):
        self._cut = (run_dir.metrics, run_dir.throughput, run_dir.evals)
        self._paths = (*self._cut, run_dir.time, run_dir.events)
        self._files: dict[Path, FileIO] = {}
        self._kept = {path: (0, hashlib.sha256()) for path in (run_dir.metrics, run_dir.evals)}
        self._run_dir = run_dir

    def kept(self) -> Kept:
        """Bytes and sha256 of the files of which a checkpoint has to find the same rows again: no clock is in them."""
        return {path.name: {"bytes": size, "sha256": sha256.hexdigest()} for path, (size, sha256) in self._kept.items()}

    def rewind(self, step: int | None, kept: Kept | None = None) -> None:
        """Drops rows past the restored checkpoint `step` (None: no checkpoint, all rows) and torn tails.

        Bytes of the rows that stay do not change. Events and times are history: only their torn tail goes.

        Args:
          step: Updates that the checkpoint has seen.
          kept: What `kept` was when it was saved, where that is known.

        Raises:
          RequestError: A file is damaged before its last line, is not what a run writes, or cannot be written; or its
            rows up to `step` are not those that were there.
        """
        assert not self._files, "rewind comes before the first row"
        rows = {
            path: b"".join(
                line
                for line, row in whole_lines(path)
                if path not in self._cut or (step is not None and row["step"] <= step)
            )
            for path in self._paths
        }
        for path in self._kept:
            self._kept[path] = len(rows[path]), hashlib.sha256(rows[path])
        for name, now in self.kept().items():
            if kept and (was := kept[name]) != now:
                change = now["bytes"] - was["bytes"]
                how = f"differ by {change:+,} bytes" if change else "have other content"
                raise RequestError(
                    f"rows up to update {step} {how} since its checkpoint was saved",
                    where=str(self._run_dir.path / name),
                    instead="a copy of the file, or run.tag=NAME for a run from the start",
                )
        for path, content in rows.items():  # once none of them has been refused
            if not path.exists() or path.stat().st_size != len(content):
                replace(path, content)

    def metrics(self, row: Row) -> Row:
        """Appends a row that is a function of config and step alone (no clock in it). Returns it as it was written."""
        return self._append(self._run_dir.metrics, {"step": row["step"], **row})

    def throughput(self, row: Row) -> Row:
        """Appends a row of timings. Returns it as it was written."""
        return self._append(self._run_dir.throughput, {"step": row["step"], **row})

    def evaluation(self, row: Row) -> Row:
        """Appends a row of one (step, suite). Returns it as it was written."""
        return self._append(self._run_dir.evals, {"step": row["step"], "suite": row["suite"], **row})

    def time(self, row: Row) -> Row:
        """Appends what the time of a start went into until now. Returns it as it was written."""
        return self._append(self._run_dir.time, row)

    def event(self, kind: str, **fields: Any) -> Row:
        """Appends what happened, with the time in UTC. Returns it as it was written."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._append(self._run_dir.events, {"time": now, "event": kind, **fields})

    def sync(self) -> None:
        """Forces all rows to disk. Called before a checkpoint, so that no checkpoint is ahead of its rows.

        Raises:
          RequestError: A file cannot be written.
        """
        for path, file in self._files.items():
            _size_of(file, path)
            with writing(path):
                os.fsync(file.fileno())

    def _append(self, path: Path, row: Row) -> Row:
        row = _finite(row)
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        if path not in self._files:
            self._files[path] = open_to_append(path)
        file = self._files[path]
        end = _size_of(file, path)
        with writing(path):
            try:
                written = file.write(line)
                while written < len(line):  # the disk took a part: the next attempt says why
                    written += file.write(line[written:])
            except OSError:
                file.truncate(end)  # or a later row would follow a half one
                raise
        if path in self._kept:
            size, sha256 = self._kept[path]
            sha256.update(line)
            self._kept[path] = size + len(line), sha256
        return row


def _size_of(file: FileIO, path: Path) -> int:
    """Bytes of an open file. Raises RequestError where it has no name any more: what is written to it is lost."""
    status = os.fstat(file.fileno())
    if status.st_nlink == 0:
        raise RequestError("was removed while the run wrote it", where=str(path), instead="a copy of the run directory")
    return status.st_size


def _finite(value: Any) -> Any:
    """The value with null for every float that JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
