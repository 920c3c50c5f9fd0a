"""The campaign: `python -m benchmarks.kills`, see `--help`."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import arguments
from benchmarks.kills.campaign import campaign, never_killed


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.kills", description="kill -9 anywhere, and nothing is lost")
    parser.add_argument("--kills", type=arguments.count, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--processes", type=arguments.count, default=1, help="of each run; any of them, or all, are killed"
    )
    parser.add_argument("--folder", type=Path, help="for the runs; default: a temporary one")
    args = parser.parse_args()
    shared = ("hardware=cpu_sim", f"hardware.devices={args.processes}", f"hardware.processes={args.processes}")
    extra = () if args.processes == 1 else shared
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="kills-"))).absolute()
    print(f"seed {args.seed}, {folder}", flush=True)
    began = time.monotonic()
    unbroken = never_killed(folder / "unbroken", extra)
    tally = campaign(folder, unbroken, args.kills, args.seed, extra=extra, report=lambda line: print(line, flush=True))
    for title, field in (("killed at", 0), ("while it was", 1)):
        by = Counter[str]()
        for key, count in tally.kills.items():
            by[key[field]] += count
        print(f"\n{title}")
        for name, count in sorted(by.items(), key=lambda item: -item[1]):
            print(f"{count:5}  {name}")
    faults = sum(map(len, tally.faults.values()))
    result = {"kills": tally.kills.total(), "runs": tally.runs, "starts": tally.starts, "differences": faults}
    print(f"\n{json.dumps(result | {'seconds': round(time.monotonic() - began), 'seed': args.seed})}")
    for root in tally.faults:
        print(f"kept: {root}, against {folder / 'unbroken'}")
    if not faults and args.folder is None:
        shutil.rmtree(folder)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
