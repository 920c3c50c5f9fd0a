"""`olmo-hydra runs`: the runs of a root and their states, from their directories."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from olmo_hydra.config.errors import RequestError
from olmo_hydra.report.text import bits
from olmo_hydra.tracking.run_dir import RunDir


def run(root: Path, as_json: bool) -> None:
    """Prints a row for each run directory below `root`."""
    found = [_described(RunDir(config.parent)) for config in sorted(root.glob("*/config.yaml"))]
    if as_json:
        print(json.dumps(found))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("run", "state", "step", "bits/byte", "last"):
        table.add_column(name, no_wrap=True)
    for row in found:
        state = row["state"] if row["writer"] is None else f"{row['state']} ({row['writer']})"
        heldout = "" if row["heldout_step"] is None else bits(row["bits_per_byte"])
        table.add_row(row["run"], state, str(row["step"]), heldout, _age(row["time"]))
    Console().print(table)


def _described(run_dir: RunDir) -> dict[str, Any]:
    """One damaged run must not hide the others."""
    try:
        return describe(run_dir)
    except RequestError as damage:
        changed = datetime.fromtimestamp(run_dir.path.stat().st_mtime, UTC).isoformat()
        nothing = {"writer": None, "step": 0, "heldout_step": None, "bits_per_byte": None}
        return {"run": run_dir.path.name, "state": f"Damaged ({damage.where})", "time": changed, **nothing}


def describe(run_dir: RunDir) -> dict[str, Any]:
    """Name, state and writer, last step with a row, step and bits per byte of the newest held-out evaluation, time of
    the last event. No `heldout_step`: there is none; no `bits_per_byte` either, or they are not finite.
    """
    events, metrics = run_dir.rows("events"), run_dir.rows("metrics")
    heldout = [row for row in run_dir.rows("evals") if row["suite"] == "heldout"]
    last = events[-1] if events else {"event": "", "time": datetime.fromtimestamp(0, UTC).isoformat()}
    state, writer = run_dir.state()
    return {
        "run": run_dir.path.name,
        "state": state,
        "writer": writer,
        "step": metrics[-1]["step"] if metrics else 0,
        "heldout_step": heldout[-1]["step"] if heldout else None,
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
