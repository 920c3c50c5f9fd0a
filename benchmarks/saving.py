"""What checkpoints cost a run of 100M parameters, and what it takes to resume from one.

    python benchmarks/saving.py [--updates N] [--every N] [--rounds N] [--seq-len N] [--folder FOLDER] [overrides]

Prints one JSON object on standard output and a line a run on standard error. A round is two runs of `python train.py`
with float32 parameters and moments, one saving every `every` updates and one never before its end, in turns first;
then the first is resumed for one update. Everything is read from what the runs wrote: `throughput.jsonl` has the
seconds of each update with the wait for its data, `time.jsonl` those that saving held the loop up.

`stall_percent` is what a save holds the loop up, as a share of the time of `every` updates without one. `lost_percent`
is all that it costs in wall time: the difference of the two runs over the updates after the first `SETTLED`, without
the save at the end, for each save and as the same share; so it also holds what a save takes from updates while it goes
on in the background. That is time of processors: where these compute the updates too, the share depends on how long an
update is (`--seq-len`). Bytes and seconds until a checkpoint is whole are of all of them, those at the end too.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
SETTLED = 5  # updates until caches are warm
MODEL = (
    *("model.d_model=768", "model.n_layers=16", "model.d_ff=1792"),
    *("data=text_files", f"data.domains.text.path={sysconfig.get_path('stdlib')}/email"),
    *("data.domains.text.pattern=*.py", "data.heldout_bytes=2000"),
    *("train.global_batch=1", "train.steps=100000", "schedule.warmup_steps=100", "eval.every=100000"),
    *("tracking.log_every=1", "tracking.wandb=disabled"),
)
NEVER = 100_000
PHASES = ("seconds", "import", "open", "restore", "compile", "data", "updates")


def main() -> None:
    parser = argparse.ArgumentParser(description="what checkpoints cost a run, and what resuming takes")
    parser.add_argument("--updates", type=int, default=150, help="of each run (150)")
    parser.add_argument("--every", type=int, default=100, help="updates between saves (100)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs (3)")
    parser.add_argument("--seq-len", type=int, default=64, help="tokens of an update (64)")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; checkpoints of a round lie there")
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    args = parser.parse_args()
    if not SETTLED < args.every < args.updates:
        parser.error(f"--every must be more than {SETTLED} and less than --updates")
    typed = [*MODEL, f"data.seq_len={args.seq_len}", *args.overrides]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        root = Path(folder)
        train(root, "run.stop_at=1", "run.tag=warm", *typed)  # prepares text and fills the compilation cache
        rounds = []
        for number in range(args.rounds):
            runs = {}
            for kind in ("saving", "never")[:: 1 if number % 2 == 0 else -1]:
                every = args.every if kind == "saving" else NEVER
                own = [*typed, f"checkpoint.every={every}", f"run.tag={kind}"]
                run = train(root, f"run.stop_at={args.updates}", *own)
                runs[kind] = wall(run, args.updates)
                if kind == "saving":
                    runs |= {"saves": saves(run), "resume": resumed(root, args.updates + 1, own)}
                print(f"round {number + 1} {kind}: {json.dumps(runs[kind])}", file=sys.stderr)
                shutil.rmtree(run)
            rounds.append(runs)
    n_saves = (args.updates - 1) // args.every
    settings = {name: getattr(args, name) for name in ("updates", "every", "rounds", "seq_len", "overrides")}
    print(json.dumps({"cpus": os.cpu_count(), **settings, **summary(rounds, args.every, n_saves)}))


def train(root: Path, *overrides: str) -> Path:
    """Runs to its end, or ends the benchmark with what the run said; returns the run directory."""
    tag = next(one.removeprefix("run.tag=") for one in overrides if one.startswith("run.tag="))
    command = [sys.executable, str(TRAIN), *overrides, f"run.root={root}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        sys.exit(f"status {done.returncode}:\n{done.stderr}")
    return next(root.glob(f"nano-{tag}-*"))


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{kind}.jsonl").read_text().splitlines()]


def wall(run: Path, updates: int) -> dict[str, float]:
    """Seconds of the settled updates, those that saving held them up, and the mean of an update."""
    each = [row["seconds"] for row in rows(run, "throughput")[SETTLED:updates]]
    at_end = next(row for row in rows(run, "time") if row["step"] == updates)  # written before the save at the end
    found = {"updates": sum(each), "stall": at_end["save"], "mean": statistics.mean(each)}
    return {name: round(value, 4) for name, value in found.items()}


def saves(run: Path) -> list[dict[str, float]]:
    """Bytes of each checkpoint, and seconds until it was whole: from the row written before it to its event."""
    begun = {row["step"]: instant(row) for row in reversed(rows(run, "time"))}
    found = []
    for event in rows(run, "events"):
        if event["event"] == "checkpoint":
            files = (run / "checkpoints" / str(event["step"])).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
            found.append({"bytes": size, "seconds": instant(event) - begun[event["step"]]})
    return found


def instant(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["time"]).timestamp()


def resumed(root: Path, stop_at: int, overrides: list[str]) -> dict[str, float]:
    """Seconds from the start of the process to the end of its first update, and what they were."""
    run = train(root, f"run.stop_at={stop_at}", *overrides)
    first = [event for event in rows(run, "events") if event["event"] == "first_update"][-1]
    return {name: first.get(name, 0.0) for name in PHASES}


def summary(rounds: list[dict[str, Any]], every: int, n_saves: int) -> dict[str, Any]:
    """Median, least and most over the rounds; `n_saves` of a run are counted, the one at its end is not."""

    def spread(values: list[float]) -> dict[str, float]:
        found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        return {name: round(value, 3) for name, value in found.items()}

    cycle = [every * one["never"]["mean"] for one in rounds]
    lost = [one["saving"]["updates"] + one["saving"]["stall"] - one["never"]["updates"] for one in rounds]
    stall = [one["saving"]["stall"] / n_saves for one in rounds]
    written = [save for one in rounds for save in one["saves"]]
    return {
        "update_seconds": spread([one["never"]["mean"] for one in rounds]),
        "lost_percent": spread([100 * a / n_saves / b for a, b in zip(lost, cycle, strict=True)]),
        "stall_percent": spread([100 * a / b for a, b in zip(stall, cycle, strict=True)]),
        "stall_seconds": spread(stall),
        "checkpoint_gb": spread([save["bytes"] / 1e9 for save in written]),
        "seconds_until_whole": spread([save["seconds"] for save in written]),
        "mb_per_second": spread([save["bytes"] / 1e6 / save["seconds"] for save in written]),
        "resume": {name: spread([one["resume"][name] for one in rounds]) for name in PHASES},
    }


if __name__ == "__main__":
    main()
