"""Whether evaluating, logging and saving make the devices wait: the gaps between their programs, from a trace.

    python benchmarks/trace.py [--json] [overrides]

Runs 36 updates of `nano`, of which `train.profile` traces 4 to 36, with a row every 5th, an evaluation every 8th and a
checkpoint every 11th update. Of each update it says how long the devices were idle from its start to the start of the
next one, in all and at most at a time, between two programs that follow each other: an evaluation is several programs.
Prints medians and the most for each kind of update. A checkpoint has the devices wait, for the copy of the state.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.trace import Span, programs, read

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
FIRST, LAST, LOG, EVAL, SAVE = 4, 36, 5, 8, 11
JOB = (
    *(f"train.steps={LAST}", "schedule.warmup_steps=10", f"train.profile=[{FIRST},{LAST}]"),
    *(f"tracking.log_every={LOG}", f"eval.every={EVAL}", f"checkpoint.every={SAVE}", "eval.sample_tokens=0"),
    *("data.heldout_bytes=16384", "tracking.wandb=disabled"),
)
UPDATE = "jit_step"


def main() -> None:
    parser = argparse.ArgumentParser(description="gaps between the devices' programs, by kind of update")
    parser.add_argument("--json", action="store_true", help="one object, with the gaps of all updates")
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), f"run.root={folder}", *JOB, *args.overrides]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (run,) = (RunDir(file.parent) for file in Path(folder).glob("*/metrics.jsonl"))
        (told,) = (event for event in run.rows("events") if event["event"] == "profiled")
        ran = programs(read(run.path / told["trace"]))
    gaps: dict[str, list[list[float]]] = defaultdict(list)
    for update, between in idle(ran, told["first"]).items():
        gaps[kind(update)].append(between)
    seconds = statistics.median(span.end - span.start for span in ran if span.name == UPDATE) / 1000
    if args.json:
        print(json.dumps({"update_ms": seconds, "idle_ms": gaps}))
        return
    print(f"the program of an update: {seconds:.2f} ms (median)")
    print(
        f"{'ms idle until the next update':32} {'updates':>8} {'programs':>8} {'in all':>8} {'at most':>8} {'ever':>8}"
    )
    for name, found in sorted(gaps.items()):
        at_most = [max(between) for between in found]
        numbers = map(statistics.median, (map(len, found), map(sum, found), at_most))
        print(f"{name:32} {len(found):8}", *(f"{number:8.2f}" for number in (*numbers, max(at_most))))


def idle(ran: Sequence[Span], first: int) -> dict[int, list[float]]:
    """By update: milliseconds in which no program ran, before each of those from its own to that of the next update."""
    starts = [index for index, span in enumerate(ran) if span.name == UPDATE]
    found = {}
    for update, (here, following) in enumerate(pairwise(starts), first):
        between, busy_until = list[float](), ran[here].end
        for span in ran[here + 1 : following + 1]:
            between.append(max(0.0, span.start - busy_until) / 1000)
            busy_until = max(busy_until, span.end)
        found[update] = between
    return found


def kind(update: int) -> str:
    """What the loop does after an update."""
    every = {"row": LOG, "evaluation": EVAL, "checkpoint": SAVE}
    return " + ".join(name for name, cadence in every.items() if update % cadence == 0) or "nothing"


if __name__ == "__main__":
    main()
