"""What checkpoints cost a run of 100M parameters, and what it takes to resume from one.

    python benchmarks/saving.py [--updates N] [--every N] [--rounds N] [--seq-len N] [--folder FOLDER] [overrides]

Prints one JSON object on standard output and a line a round on standard error. A round is a run of `python train.py`
with float32 parameters and moments that saves every `every` updates, and its resumption for one update. Everything is
read from what the run wrote: `throughput.jsonl` has the seconds of each update with the wait for its data, `time.jsonl`
those that saving held the loop up.

Percentages are of the time of 100 updates, for one save in that time. `stall_percent` is what a save holds the loop up.
`lost_percent` is all that it costs in wall time: also what the `AFTER` updates behind it took longer than the median of
all others, as it goes on in the background. That is time of processors: where these compute the updates too, the share
depends on how long an update is (`--seq-len`). The save at a run's end counts for bytes and seconds until it is whole.
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
AFTER = 8  # updates behind a save in which it may still go on
SHARE = 100  # updates
MODEL = (
    *("model.d_model=768", "model.n_layers=16", "model.d_ff=1792"),
    *("data=text_files", f"data.domains.text.path={sysconfig.get_path('stdlib')}/email"),
    *("data.domains.text.pattern=*.py", "data.heldout_bytes=2000"),
    *("train.global_batch=1", "train.steps=100000", "schedule.warmup_steps=100", "eval.every=100000"),
    *("tracking.log_every=1", "tracking.wandb=disabled"),
)
PHASES = ("seconds", "import", "open", "restore", "compile", "data", "updates")


def main() -> None:
    parser = argparse.ArgumentParser(description="what checkpoints cost a run, and what resuming takes")
    parser.add_argument("--updates", type=int, default=110, help="of each run (110)")
    parser.add_argument("--every", type=int, default=20, help="updates between saves (20)")
    parser.add_argument("--rounds", type=int, default=1, help="runs (1)")
    parser.add_argument("--seq-len", type=int, default=64, help="tokens of an update (64)")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; checkpoints of a round lie there")
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    args = parser.parse_args()
    if not SETTLED + AFTER < args.every < args.updates - AFTER:
        parser.error(f"--every must be more than {SETTLED + AFTER} and less than --updates by more than {AFTER}")
    typed = [*MODEL, f"data.seq_len={args.seq_len}", f"checkpoint.every={args.every}", *args.overrides]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        root = Path(folder)
        train(root, "run.stop_at=1", "run.tag=warm", *typed)  # prepares text and fills the compilation cache
        rounds = []
        for number in range(args.rounds):
            run = train(root, f"run.stop_at={args.updates}", "run.tag=saving", *typed)
            found = costs(run, args.updates, args.every)
            resumed = train(root, f"run.stop_at={args.updates + 1}", "run.tag=saving", *typed)
            found |= {"saves": saves(resumed), "resume": start(resumed)}
            print(f"round {number + 1}: {json.dumps(found)}", file=sys.stderr)
            shutil.rmtree(run)
            rounds.append(found)
    settings = {name: getattr(args, name) for name in ("updates", "every", "rounds", "seq_len", "overrides")}
    print(json.dumps({"cpus": os.cpu_count(), **settings, **summary(rounds)}))


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


def costs(run: Path, updates: int, every: int) -> dict[str, Any]:
    """Median seconds of an update apart from saves, those that a save held the loop up, and what each cost in all."""
    each = [row["seconds"] for row in rows(run, "throughput")][:updates]
    saved = range(every, updates - AFTER + 1, every)  # after so many updates
    behind = {n for after in saved for n in range(after, after + AFTER)}
    usual = statistics.median(each[n] for n in range(SETTLED, updates) if n not in behind)
    at_end = next(row for row in rows(run, "time") if row["step"] == updates)  # written before the save at the end
    stall = at_end["save"] / ((updates - 1) // every)
    lost = [sum(each[after : after + AFTER]) - AFTER * usual + stall for after in saved]
    return {"update": usual, "stall": stall, "lost": lost}


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


def start(run: Path) -> dict[str, float]:
    """Seconds from the start of the last process to the end of its first update, and what they were."""
    first = [event for event in rows(run, "events") if event["event"] == "first_update"][-1]
    return {name: first.get(name, 0.0) for name in PHASES}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most: of updates, stalls and resumptions over the rounds, else over all saves."""

    def spread(values: list[float]) -> dict[str, float]:
        found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        return {name: round(value, 3) for name, value in found.items()}

    written = [save for one in rounds for save in one["saves"]]
    lost = [(seconds, SHARE * one["update"]) for one in rounds for seconds in one["lost"]]
    return {
        "update_seconds": spread([one["update"] for one in rounds]),
        "lost_seconds": spread([seconds for seconds, _ in lost]),
        "lost_percent": spread([100 * seconds / of for seconds, of in lost]),
        "stall_seconds": spread([one["stall"] for one in rounds]),
        "stall_percent": spread([100 * one["stall"] / (SHARE * one["update"]) for one in rounds]),
        "checkpoint_gb": spread([save["bytes"] / 1e9 for save in written]),
        "seconds_until_whole": spread([save["seconds"] for save in written]),
        "mb_per_second": spread([save["bytes"] / 1e6 / save["seconds"] for save in written]),
        "resume": {name: spread([one["resume"][name] for one in rounds]) for name in PHASES},
    }


if __name__ == "__main__":
    main()
