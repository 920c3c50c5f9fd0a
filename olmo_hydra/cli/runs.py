"""`olmo-hydra runs`: runs and their states, from their directories; with `--sync`, their record to W&B."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmo_hydra.cli.say import say
from olmo_hydra.config.errors import RequestError, RunFailed, printable
from olmo_hydra.report import text
from olmo_hydra.tracking import goodput, wandb_sync
from olmo_hydra.tracking.checkpoints import whole
from olmo_hydra.tracking.documents import as_written, load_yaml
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]
COLUMNS = ("run", "state", "step", "bits/byte", "goodput", "saved", "checkpoints", "other", "last", "writer")
TO_THE_RIGHT = frozenset(COLUMNS[2:9])


def find(folders: Sequence[Path]) -> list[RunDir]:
    """The run directories among the folders, and directly in them.

    Raises:
      RequestError: There is no such folder.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise RequestError(
                "there is no such folder",
                key=str(folder),
                instead="olmo-hydra runs FOLDER, with the run.root of the runs",
            )
        configs = (
            [folder / "config.yaml"] if (folder / "config.yaml").exists() else sorted(folder.glob("*/config.yaml"))
        )
        found += [RunDir(config.parent) for config in configs]
    return found


def sync(run_dirs: Sequence[RunDir], as_json: bool) -> None:
    """Sends each run's record to W&B, and prints a line of what came of it.

    Raises:
      RequestError: There is no API key.
      RunFailed: A run could not be sent. The others were.
    """
    wandb_sync.require_key()
    label = _label(run_dirs)
    done = []
    for run_dir in run_dirs:
        try:
            synced = wandb_sync.sync(run_dir)
        except (RequestError, OSError) as error:
            synced = wandb_sync.Synced("failed", " ".join(str(error).removeprefix("error: ").split()))
        done.append({"run": run_dir.path.name, "folder": str(run_dir.path), **synced._asdict()})
        if not as_json:
            rows = f"{synced.rows:,} rows, " if synced.rows else ""
            say(f"{done[-1][label]}  {synced.outcome}: {rows}{synced.why}")
    if as_json:
        print(json.dumps(done))
    failed = sum(row["outcome"] == "failed" for row in done)
    if failed:
        raise RunFailed(f"{failed} of {len(done)} runs could not be sent to W&B; the same command goes on")


def show(run_dirs: Sequence[RunDir], as_json: bool) -> None:
    """Prints a row for each run; two lines, where a terminal is too narrow for the table."""
    found = [_described(run_dir) for run_dir in run_dirs]
    if as_json:
        print(json.dumps(found))
        return
    label = _label(run_dirs)
    cells = [_cells(row, label) for row in found]
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="right" if name in TO_THE_RIGHT else "left")
    for row in cells:
        table.add_row(*(Text(row[name]) for name in COLUMNS))
    console = Console(highlight=False)
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    if console.is_terminal and needed > console.width:
        for row in cells:
            console.print(Text(_two_lines(row)), soft_wrap=True)
    else:
        Console(highlight=False, width=max(needed, 1)).print(table)


def _label(run_dirs: Sequence[RunDir]) -> str:
    """What tells the runs apart: their names, or, of several roots, their folders as the command was given them."""
    return "folder" if len({run_dir.path.parent for run_dir in run_dirs}) > 1 else "run"


def _two_lines(row: dict[str, str]) -> str:
    by = f" by {row['writer']}" if row["writer"] else ""
    second = [f"step {row['step']}"]
    if row["bits/byte"]:
        second.append(f"{row['bits/byte']} bpb")
    if row["goodput"]:
        second.append(f"goodput {row['goodput']}")
    if row["saved"]:
        second.append(f"saved {row['saved']} ({row['checkpoints']})")
    return f"{row['run']}  {row['state']}{by}\n  {'  '.join([*second, row['last']])}"


def _cells(row: Row, label: str) -> dict[str, str]:
    """What the table shows of a run."""
    of = "" if row["steps"] is None else f"/{row['steps']:,}"
    values = {
        "run": row[label],
        "state": row["state"],
        "step": f"{row['step']:,}{of}",
        "bits/byte": "" if row["heldout_step"] is None else text.bits(row["bits_per_byte"]),
        "goodput": "" if row["goodput"] is None else text.percent(row["goodput"]),
        "saved": f"{row['checkpoints'][-1]['step']:,}" if row["checkpoints"] else "",
        "checkpoints": text.size(row["checkpoint_bytes"]) if row["checkpoint_bytes"] else "",
        "other": text.size(row["other_bytes"]),
        "last": _age(row["time"]),
        "writer": row["writer"] or "",
    }
    return {name: printable(value) for name, value in values.items()}


def _described(run_dir: RunDir) -> Row:
    """One damaged run must not hide the others."""
    try:
        return describe(run_dir)
    except (RequestError, OSError) as damage:
        where = str(damage.where if isinstance(damage, RequestError) else damage.filename)
        where = where.removeprefix(str(run_dir.path)).lstrip("/")
        nothing = dict.fromkeys(("writer", "steps", "heldout_step", "bits_per_byte", "goodput"))
        state = f"Damaged ({where})" if where else "Damaged"
        return {
            **{"run": run_dir.path.name, "folder": str(run_dir.path), "state": state, "step": 0, **nothing},
            **{"checkpoints": [], **_sizes(run_dir), "time": _changed(run_dir)},
        }


def describe(run_dir: RunDir) -> Row:
    """What a run directory says of its run.

    Returns:
      `run`: its name; `folder`: where it is; `state`; `writer`: the process that writes it, or null; `step`: of the
      last row; `steps`: of the whole run; `heldout_step`, `bits_per_byte`: of the newest held-out evaluation (null:
      there is none, or they are not finite); `goodput`: the share of the wall time that advanced the run;
      `checkpoints`: the whole ones, oldest first, each with `step`, `kind` and `bytes`; `checkpoint_bytes`,
      `other_bytes`: on disk, of the folder of checkpoints with what is not whole in it, and of everything else;
      `time`: of the last event.

    Raises:
      RequestError: A file of it is damaged.
    """
    events, metrics = run_dir.rows("events"), run_dir.rows("metrics")
    heldout = [row for row in run_dir.rows("evals") if row["suite"] == "heldout"]
    state, writer = run_dir.state()
    spent = goodput.of_run(run_dir)
    with as_written(run_dir.path, "a line of `olmo-hydra runs`"):
        content = load_yaml(run_dir.config)
        time = events[-1]["time"] if events else _changed(run_dir)
        _age(time)
        steps = content.get("train", {}).get("steps")
        return {
            "run": run_dir.path.name,
            "folder": str(run_dir.path),
            "state": state,
            "writer": writer,
            "step": metrics[-1]["step"] if metrics else 0,
            "steps": steps if isinstance(steps, int) else None,
            "heldout_step": heldout[-1]["step"] if heldout else None,
            "bits_per_byte": heldout[-1]["bits_per_byte"] if heldout else None,
            "goodput": None if spent is None else spent.goodput,
            "checkpoints": [
                {"step": step, "kind": one.kind.value, "bytes": one.size}
                for step, one in whole(run_dir.checkpoints).items()
            ],
            **_sizes(run_dir),
            "time": time,
        }


def _sizes(run_dir: RunDir) -> dict[str, int]:
    """Bytes of files. Of links only `checkpoints` itself is followed, as to a larger disk."""
    saved = _bytes(run_dir.checkpoints)
    inside = 0 if run_dir.checkpoints.is_symlink() else saved
    return {"checkpoint_bytes": saved, "other_bytes": _bytes(run_dir.path) - inside}


def _bytes(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(place, file)).st_size
            except OSError:  # removed meanwhile
                continue
    return total


def _changed(run_dir: RunDir) -> str:
    return datetime.fromtimestamp(run_dir.path.stat().st_mtime, UTC).isoformat()


def _age(time: str) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
