"""The only writer of a run's jsonl files."""

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.run_dir import RunDir, whole_lines

Row = dict[str, Any]


class Record:
    """Appends rows to `metrics.jsonl`, `throughput.jsonl`, `evals.jsonl` and events to `events.jsonl`.

    A row is one line, handed to the system in one write, so that only the last line of a killed run can be torn.
    Call `rewind` once before the first row.
    """

    def __init__(self, run_dir: RunDir):
        self._cut = (run_dir.metrics, run_dir.throughput, run_dir.evals)
        self._paths = (*self._cut, run_dir.events)
        self._files: dict[Path, BinaryIO] = {}
        self._run_dir = run_dir

    def rewind(self, step: int | None) -> None:
        """Drops rows past the restored checkpoint `step` (None: no checkpoint, all rows) and torn tails.

        Bytes of the rows that stay do not change. Events are history: only their torn tail goes.

        Raises:
          RequestError: A file is damaged before its last line.
        """
        assert not self._files, "rewind comes before the first row"
        for path in self._paths:
            kept = [
                line
                for line, row in whole_lines(path)
                if path not in self._cut or (step is not None and row["step"] <= step)
            ]
            if not path.exists() or path.stat().st_size != sum(map(len, kept)):
                replace(path, b"".join(kept))

    def metrics(self, row: Row) -> Row:
        """Appends a row that is a function of config and step alone (no clock in it). Returns it as it was written."""
        return self._append(self._run_dir.metrics, {"step": row["step"], **row})

    def throughput(self, row: Row) -> Row:
        """Appends a row of timings. Returns it as it was written."""
        return self._append(self._run_dir.throughput, {"step": row["step"], **row})

    def evaluation(self, row: Row) -> Row:
        """Appends a row of one (step, suite). Returns it as it was written."""
        return self._append(self._run_dir.evals, {"step": row["step"], "suite": row["suite"], **row})

    def event(self, kind: str, **fields: Any) -> Row:
        """Appends what happened, with the time in UTC. Returns it as it was written."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._append(self._run_dir.events, {"time": now, "event": kind, **fields})

    def sync(self) -> None:
        """Forces all rows to disk. Called before a checkpoint, so that no checkpoint is ahead of its rows."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def _append(self, path: Path, row: Row) -> Row:
        row = _finite(row)
        if path not in self._files:
            self._files[path] = path.open("ab", buffering=0)
        self._files[path].write(json.dumps(row, allow_nan=False).encode() + b"\n")
        return row


def _finite(value: Any) -> Any:
    """The value with null for every float that JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
