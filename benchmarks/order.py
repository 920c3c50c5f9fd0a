"""The order of an epoch of Olmo 3's size: made beside NumPy's own shuffle, opened again, read through.

    python benchmarks/order.py [--instances N] [--rounds N] [--folder FOLDER]

Prints one JSON object on standard output and a line a measurement on standard error. Each one is a process of its own,
so that its peak memory is its own; NumPy's and ours alternate, so that other load on the machine meets both. Needs 4
bytes an instance of memory and of disk.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INSTANCES = 724_000_000  # Olmo 3 7B's first stage, of 8,192 tokens each
BATCH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description="making, opening and reading a long order")
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        start = time.perf_counter()
        MEASURES[args.measure](args.folder, args.instances)
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9]))
        return
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in MEASURES}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for _ in range(args.rounds):
            for file in folder.iterdir():
                file.unlink()
            for measure in MEASURES:
                results[measure].append(alone(measure, folder, args.instances))
    medians = {name: [statistics.median(values) for values in zip(*of, strict=True)] for name, of in results.items()}
    report = {name: {"seconds": round(s, 3), "peak_gb": round(gb, 3)} for name, (s, gb) in medians.items()}
    ratio = statistics.median(ours[0] / its[0] for ours, its in zip(results["make"], results["numpy"], strict=True))
    print(json.dumps({"instances": args.instances, "make_over_numpy": round(ratio, 3)} | report))


def alone(measure: str, folder: Path, n: int) -> tuple[float, float]:
    """Seconds and GB of resident memory at most, of one measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", measure, "--folder", folder, "--instances", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = json.loads(done.stdout)
    print(f"{measure:6} {seconds:8.3f} s {peak:6.3f} GB", file=sys.stderr)
    return seconds, peak


def shuffle(folder: Path, n: int) -> None:
    import numpy as np

    numbers = np.arange(n, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(1)).shuffle(numbers)


def make(folder: Path, n: int) -> None:
    from olmo_hydra.data.order import Order

    Order(folder, n, seed=0).make(1)


def open_again(folder: Path, n: int) -> None:
    """Imports and the check of what is there included."""
    from olmo_hydra.data.sampler import Sampler

    Sampler(n, BATCH, seed=0, folder=folder).take(n // BATCH // 2, 1)


def read(folder: Path, n: int) -> None:
    from olmo_hydra.data.sampler import Sampler

    sampler = Sampler(n, BATCH, seed=0, folder=folder)
    for row in range(sampler.batches_per_epoch):
        sampler.take(row, 1)


MEASURES = {"numpy": shuffle, "make": make, "open": open_again, "read": read}

if __name__ == "__main__":
    main()
