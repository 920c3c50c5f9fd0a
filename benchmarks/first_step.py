"""From process start to first update of `python train.py`, with an empty compilation cache and with a filled one.

    python -m benchmarks.first_step [--rounds N] [overrides]

Prints one JSON object on standard output and a line a start on standard error. Text is prepared beforehand. The clock
runs from before the process is created until the event `first_update`: the metrics of update 1 have arrived. That
includes imports and the compilation of the step; the evaluation at step 0 comes after it. `cpu` is what the process
has computed until then, on all cores: unlike the clock it hardly depends on other load. Rounds alternate cold and warm
starts, so that such load meets both.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import arguments, machine

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
POLL_S = 0.01
TIMEOUT_S = 900
MARKS = ("started", "compiled", "first_update")


def main() -> None:
    parser = argparse.ArgumentParser(description="process start to first update, cold and warm")
    parser.add_argument("--rounds", type=arguments.count, default=5)
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    args = parser.parse_args()
    here = machine.found()
    print(machine.said(here), end="", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        overrides = [*args.overrides, f"run.root={root}", "tracking.wandb=offline"]
        prepare = [sys.executable, "-m", "olmo_hydra", "data", "prepare", *overrides]
        if status := subprocess.run(prepare, stdout=subprocess.DEVNULL).returncode:  # it has said why
            sys.exit(status)
        seconds: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        for number in range(1, args.rounds + 1):
            for kind, starts in seconds.items():
                if kind == "cold":
                    shutil.rmtree(root / "cache" / "xla", ignore_errors=True)
                starts.append(first_update(root, overrides))
                marks = ", ".join(f"{mark} {value:.2f} s" for mark, value in starts[-1].items())
                print(f"round {number} {kind}: {marks}", file=sys.stderr)
    print(json.dumps({"machine": here, "overrides": args.overrides, **summary(seconds)}))


def first_update(root: Path, overrides: list[str]) -> dict[str, float]:
    """Seconds from before the process is created to each mark; the process is killed at the last one."""
    (root / "log").unlink(missing_ok=True)
    with open(root / "log", "wb") as log:
        start = time.time()
        process = subprocess.Popen(
            [sys.executable, str(TRAIN), *overrides], stdout=log, stderr=log, start_new_session=True
        )
        try:
            while not any(b'"first_update"' in file.read_bytes() for file in root.glob("*/events.jsonl")):
                if process.poll() is not None or time.time() - start > TIMEOUT_S:
                    sys.exit(f"no first update:\n{(root / 'log').read_text()}")
                time.sleep(POLL_S)
            cpu = cpu_seconds(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    (run,) = (file.parent for file in root.glob("*/events.jsonl"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    seconds = {row["event"]: datetime.fromisoformat(row["time"]).timestamp() - start for row in events}
    shutil.rmtree(run, ignore_errors=True)  # a child may still be closing its files
    return {mark: seconds[mark] for mark in MARKS} | {"cpu": cpu}


def cpu_seconds(pid: int) -> float:
    """What a process has computed, itself and the system for it; that of its children is not in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # fields 14 and 15 of proc(5)


def summary(seconds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Median, least and most seconds to each mark, for each kind of start."""

    def spread(values: list[float]) -> dict[str, float]:
        found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        return {name: round(value, 3) for name, value in found.items()}

    return {
        kind: {mark: spread([start[mark] for start in starts]) for mark in starts[0]}
        for kind, starts in seconds.items()
    }


if __name__ == "__main__":
    main()
