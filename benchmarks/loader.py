"""Tokens a second of processor time, from the page cache, beside OLMo-core's loader.

    python benchmarks/loader.py [--peer PYTHON] [--seq-len T] [--batch B] [--rounds N]

`--peer` is the interpreter of an environment with `ai2-olmo-core` and torch; by default that of OLMO_HYDRA_PEER_PYTHON.
Without one, ours is measured alone. Both read the same random uint32 file through windows of T tokens in the order of
the same seed, in processes that are bound to one core, in turn. Prints one JSON object: millions of tokens a second,
medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, END, PAD = 100_278, 100_257, 100_277
TOKENS = 1 << 26


def main() -> None:
    parser = argparse.ArgumentParser(description="tokens a second of the loader")
    parser.add_argument("--peer", default=os.environ.get("OLMO_HYDRA_PEER_PYTHON"))
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=LOADERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(measure(LOADERS[args.measure](args.folder, args.seq_len, args.batch), args.seq_len * args.batch))
        return
    names = [name for name in LOADERS if args.peer or name != "olmo_core"]
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        np.random.default_rng(0).integers(0, END, TOKENS, np.uint32).tofile(f"{folder}/0.npy")
        of_each = ["--seq-len", str(args.seq_len), "--batch", str(args.batch), "--folder", folder]
        for _ in range(args.rounds):
            for name in names:
                python = args.peer if name == "olmo_core" else sys.executable
                command = [python, __file__, "--measure", name, *of_each]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[name].append(float(done.stdout))
                print(f"{name:24} {found[name][-1]:8.1f} M tokens/s", file=sys.stderr)
    report = {name: round(statistics.median(of), 1) for name, of in found.items()}
    if args.peer:
        pairs = zip(found["ours"], found["olmo_core"], strict=True)
        report["times_olmo_core"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 2)
    print(json.dumps(report))


def measure(batches: Iterator[Any], tokens: int) -> float:
    """Millions of tokens a second, of a few batches after the first."""
    n_batches = min(400, TOKENS // tokens - 1)
    next(batches)
    start = time.process_time()
    read = sum(1 for _ in islice(batches, n_batches))
    return read * tokens / (time.process_time() - start) / 1e6


def ours(folder: Path, seq_len: int, global_batch: int, **options: bool) -> Iterator[Any]:
    batches = _batches(folder, seq_len, global_batch, **options)
    return (batches.batch(n) for n in range(sys.maxsize))


def masked(folder: Path, seq_len: int, global_batch: int) -> Iterator[Any]:
    return ours(folder, seq_len, global_batch, document_mask=True)


def filtered(folder: Path, seq_len: int, global_batch: int) -> Iterator[Any]:
    return ours(folder, seq_len, global_batch, repetition_filter=True)


def ahead(folder: Path, seq_len: int, global_batch: int) -> Iterator[Any]:
    return _batches(folder, seq_len, global_batch).iterate(0, threads=2)


def _batches(folder: Path, seq_len: int, global_batch: int, **options: bool) -> Any:
    from olmo_hydra.data.files.token_file import open_file
    from olmo_hydra.data.instances.kinds import Windows
    from olmo_hydra.data.loader import Batches, Cut
    from olmo_hydra.data.sampler import Sampler

    files = [open_file(folder / "0.npy", np.dtype("<u4"), label="text")]
    source = Windows(files, seq_len)
    sampler = Sampler(len(source), global_batch, seed=0, folder=folder)
    return Batches(files, source, sampler, Cut(seq_len, VOCAB, END, PAD, **options))


def olmo_core(folder: Path, seq_len: int, global_batch: int) -> Iterator[Any]:
    from olmo_core.data import DataCollator, NumpyFSLDataset
    from olmo_core.data.data_loader import NumpyDataLoaderBase
    from olmo_core.data.utils import get_labels

    tokenizer = {"pad_token_id": PAD, "eos_token_id": END, "vocab_size": VOCAB}
    dataset = NumpyFSLDataset(folder / "0.npy", sequence_length=seq_len, dtype=np.uint32, **tokenizer)
    dataset.work_dir = folder
    dataset.prepare()
    loader = NumpyDataLoaderBase.wrap_numpy_dataset(
        dataset,
        global_batch_size=global_batch * seq_len,
        collator=DataCollator(pad_token_id=PAD),
        work_dir=folder,
        num_threads=0,
    )
    loader.reshuffle(1)
    return (get_labels(batch) for batch in loader)


LOADERS = {
    "olmo_core": olmo_core,
    "ours": ours,
    "ours, read ahead": ahead,
    "ours, document mask": masked,
    "ours, filter": filtered,
}

if __name__ == "__main__":
    main()
