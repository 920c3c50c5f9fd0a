"""`olmo-hydra runs`: the runs of a root and their states, from their directories."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from olmo_hydra.tracking.run_dir import RunDir

ENDS = ("finished", "paused", "interrupted", "failed")


def run(root: Path, as_json: bool) -> None:
    """Prints a row for each run directory below `root`."""
    found = [describe(RunDir(config.parent)) for config in sorted(root.glob("*/config.yaml"))]
    if as_json:
        print(json.dumps(found))
        return
    table = Table("run", "state", "step", "held-out bits/byte", "last event")
    for row in found:
        bits = "" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.3f}"
        table.add_row(row["run"], row["state"], str(row["step"]), bits, _age(row["time"]))
    Console().print(table)


def describe(run_dir: RunDir) -> dict[str, Any]:
    """Name, state, last step with a row, newest held-out bits per byte, time of the last event."""
    events, metrics = run_dir.rows("events"), run_dir.rows("metrics")
    heldout = [row for row in run_dir.rows("evals") if row["suite"] == "heldout"]
    last = events[-1] if events else {"event": "", "time": datetime.fromtimestamp(0, UTC).isoformat()}
    ended = next((row["event"] for row in reversed(events) if row["event"] in (*ENDS, "started", "resumed")), "")
    writer = run_dir.writer()
    at_rest = ended if ended in ENDS else "died"
    return {
        "run": run_dir.path.name,
        "state": at_rest if writer is None else f"running ({writer})",
        "step": metrics[-1]["step"] if metrics else 0,
        "bits_per_byte": heldout[-1]["bits_per_byte"] if heldout else None,
        "time": last["time"],
    }


def _age(time: str) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
