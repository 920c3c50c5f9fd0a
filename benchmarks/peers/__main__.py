"""Our training step beside its peers': `python -m benchmarks.peers`, see `--help` and docs/benchmarks.md."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import arguments, machine
from benchmarks.peers import view
from benchmarks.peers.adapters.ours import overrides
from benchmarks.peers.jobs import CELLS, Job, job, num_params
from benchmarks.peers.measure import measure
from benchmarks.peers.programs import INSTALL, PROGRAMS, ROOT, WorkerFailed, environments, interpreter
from olmo_hydra.cli.guard import guarded
from olmo_hydra.config.compose import compose

RESULTS = ROOT / "benchmarks" / "results" / "peers"


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description="our training step beside its peers'")
    parser.add_argument(
        "--cells",
        type=arguments.some_of(list(CELLS)),
        default="tiny",
        help=f"of {','.join(CELLS)}; with commas between",
    )
    parser.add_argument(
        "--programs",
        type=arguments.some_of(list(PROGRAMS)),
        default=",".join(PROGRAMS),
        help="ours is always among them",
    )
    parser.add_argument("--rounds", type=arguments.count, default=7, help="how often each program has its turn")
    parser.add_argument("--steps", type=arguments.count, default=4, help="updates in a turn")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds before a turn")
    parser.add_argument("--check", action="store_true", help="compare the losses of the first updates, and no more")
    parser.add_argument(
        "--out", type=arguments.folder, default=RESULTS, help="folder for the results; default: %(default)s"
    )
    parser.add_argument("overrides", nargs="*", help="of our config, as for train.py")
    args = parser.parse_args()
    cells, programs = args.cells.split(","), args.programs.split(",")
    if status := guarded(lambda: [compose(overrides(job(cell, None, overrides=args.overrides))) for cell in cells]):
        return status
    names = ["ours", *(name for name in programs if name != "ours" and interpreter(name))]
    absent = sorted({*programs} - {*names})
    for name in absent:
        print(f"{name} is not in {environments()}: {INSTALL} {name}", flush=True)
    if args.check and names == ["ours"]:
        print("there is no peer to compare ours with", file=sys.stderr)
        return 1
    here: dict[str, Any] = {}
    if not args.check:
        here = machine.found()
        print(machine.said(here), end="", flush=True)
    ok = not absent
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            what = job(cell, f"{folder}/weights.npz", overrides=args.overrides)
            print(f"{cell}: {num_params(what['model']):,} parameters, {what['compute_dtype']}", flush=True)
            rounds = 0 if args.check else args.rounds
            try:
                found = measure(
                    names, what, rounds=rounds, steps=args.steps, pause=args.pause, logs=logs(args.out), say=say
                )
            except WorkerFailed as error:
                print(error, file=sys.stderr)
                return 1
        ok &= all(program.get("same_model") for program in found.values())
        if rounds:
            keep(args.out, cell, what, found, here)
    return 0 if ok else 1


def logs(out: Path) -> Path:
    folder = out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str) -> None:
    print(line, flush=True)


def keep(out: Path, cell: str, what: Job, programs: dict[str, dict[str, Any]], here: dict[str, Any]) -> None:
    """Writes CELL.json, CELL.md and CELL.svg, and prints the table."""
    tokens = what["batch"] * what["seq_len"]
    table = view.table(programs)
    del what["weights"]
    report = {
        "cell": cell,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": here,
        "job": what,
        "programs": programs,
    }
    (out / f"{cell}.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / f"{cell}.md").write_text(table + "\n")
    title = (
        f"{cell}: {num_params(what['model']) / 1e6:.1f}M parameters, {tokens} tokens a step, {what['compute_dtype']}"
    )
    (out / f"{cell}.svg").write_text(view.picture(programs, tokens, title))
    print(f"{table}\n{out / cell}.json, .md, .svg", flush=True)


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
