"""Tokenizing as `data prepare` does it, beside the batch encoding of the `tokenizers` library on the same cores.

    python benchmarks/tokenizing.py FOLDER [--tokenizer dolma2] [--rounds 5] [--workers N]

Both take the documents that `data prepare FOLDER` would, and give arrays of ids. The library has them in memory and one
thread a core; ours reads them from parts in the page cache, hashes them and writes files. Rounds alternate, and the
medians are compared. Processes and tokenizers are there before the first round.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from olmo_hydra.config.data import DomainConfig, TextConfig
from olmo_hydra.data.text import parts, workers
from olmo_hydra.data.text.choose import Chooser
from olmo_hydra.data.text.parts import Part
from olmo_hydra.data.text.prepare import cores
from olmo_hydra.data.text.sources import files, units
from olmo_hydra.data.tokenizers import tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="text, code or records, as for data prepare; code:FOLDER for code")
    parser.add_argument("--tokenizer", default="dolma2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=cores())
    parsed = parser.parse_args()
    kind, path = ("code", parsed.folder[5:]) if parsed.folder.startswith("code:") else ("files", parsed.folder)
    domain = DomainConfig(source=kind, path=path, heldout_fraction=0.0)
    cfg = TextConfig(domains={"text": domain}, split_seed=0, min_bytes=1)
    files.UNIT_BYTES, workers.IN_PROCESS = 1 << 20, 0  # even loads for a text of a few MB
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder, workers.Workers(parsed.workers) as pool:
        corpus, chooser = Path(folder), Chooser(cfg, keep_duplicates=False)
        pieces = []
        for number, unit in enumerate(units("text", domain)):
            pieces.append(Part(corpus / f"{number}", corpus / f"{number}"))
            parts.read(pieces[-1], unit)
            chooser.choose(pieces[-1], "text")
        texts = [raw.decode() for piece in pieces for _, raw in piece.texts("train")]
        n_bytes = sum(len(text.encode()) for text in texts)
        library = tokenizer.build(parsed.tokenizer).library
        tasks = [("", (piece, parsed.tokenizer, corpus)) for piece in pieces]
        list(pool.run(parts.encode, tasks))
        expected = [np.array(encoding.ids) for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
        n_tokens = sum(map(len, expected))
        for _ in range(parsed.rounds):
            start = time.perf_counter()
            [np.array(encoding.ids) for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
            theirs.append(n_bytes / 1e6 / (time.perf_counter() - start))
            start = time.perf_counter()
            list(pool.run(parts.encode, tasks))
            ours.append(n_bytes / 1e6 / (time.perf_counter() - start))
        totals = [piece.load("encoded.json")["train"] for piece in pieces]
        written = sum(total["tokens"] - total["documents"] for total in totals)  # without the ends
    assert written == n_tokens, (written, n_tokens)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"{len(texts):,} documents, {n_bytes / 1e6:.1f} MB, {n_tokens:,} tokens; {cores()} cores")
    for name, rates in (("tokenizers", theirs), (f"ours, {parsed.workers} processes", ours)):
        median = statistics.median(rates)
        shown = ", ".join(f"{rate:.2f}" for rate in rates)
        print(f"{name:20} {median:6.2f} MB/s  {median * n_tokens / n_bytes:5.2f} million tokens/s  ({shown})")
    print(f"ours / tokenizers    {ratio:6.2f}")


if __name__ == "__main__":
    main()
