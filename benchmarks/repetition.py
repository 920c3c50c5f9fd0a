"""The repetition filter beside the plain algorithm, on random tokens, on text, and on text that repeats itself.

    python benchmarks/repetition.py [--text FILE --dtype uint32] [--seq-len T] [--rounds N]

Prints one JSON object: microseconds an instance, medians of rounds that alternate, and the quotient. `plain` is the
algorithm of OLMo-core's `find_periodic_sequences`, rows compared with the row before for each period; both give the
same verdicts, or this fails. Without `--text`, text is the source of Python's standard library, a token a byte.
"""

import argparse
import json
import statistics
import sysconfig
import time
from pathlib import Path

import numpy as np

from olmo_hydra.data.instances.repetition import repeats


def main() -> None:
    parser = argparse.ArgumentParser(description="the repetition filter beside the plain algorithm")
    parser.add_argument("--text", type=Path, help="a headerless token file")
    parser.add_argument("--dtype", default="uint32")
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    shape_BT = args.batch, args.seq_len
    rng = np.random.default_rng(0)
    period_of_13 = np.resize(np.arange(13), shape_BT) + 100 * (np.arange(args.seq_len) % 400 == 0)
    texts = {
        "random": rng.integers(0, 100_278, shape_BT),
        "text": np.resize(read(args.text, args.dtype, args.batch * args.seq_len), shape_BT),
        "all equal": np.zeros(shape_BT),
        "almost caught in every period": period_of_13,
    }
    print(json.dumps({name: measure(tokens.astype(np.int32), args.rounds) for name, tokens in texts.items()}))


def measure(tokens_BT: np.ndarray, rounds: int) -> dict[str, float]:
    lengths_B = np.full(len(tokens_BT), tokens_BT.shape[1])
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        start = time.perf_counter()
        caught_B = [plain(tokens) for tokens in tokens_BT]
        seconds["plain"].append(time.perf_counter() - start)
        start = time.perf_counter()
        ours_B = repeats(tokens_BT, lengths_B)
        seconds["ours"].append(time.perf_counter() - start)
        assert ours_B.tolist() == caught_B
    us = {name: statistics.median(of) / len(tokens_BT) * 1e6 for name, of in seconds.items()}
    faster = statistics.median(p / o for p, o in zip(seconds["plain"], seconds["ours"], strict=True))
    return {name: round(value, 1) for name, value in us.items()} | {"times_faster": round(faster, 1)}


def plain(tokens: np.ndarray, max_period: int = 13, max_count: int = 32) -> bool:
    """Whether OLMo-core's filter catches an instance."""
    for period in range(1, min(max_period, len(tokens) // 3) + 1):
        rows = np.pad(tokens, (0, period - len(tokens) % period), constant_values=-1).reshape(-1, period)
        equal = rows == np.roll(rows, 1, axis=0)
        (whole,) = np.where(equal.all(axis=1))
        for run in np.split(whole, np.where(np.diff(whole) != 1)[0] + 1) if len(whole) else ():
            before = np.flatnonzero(~equal[run[0] - 1])
            after = np.flatnonzero(~equal[run[-1] + 1])
            start = (run[0] - 1) * period - (period - 1 - int(before[-1]))
            end = (run[-1] + 1) * period + int(after[0])
            if (end - start) // period >= max(max_count, 3):
                return True
    return False


def read(file: Path | None, dtype: str, count: int) -> np.ndarray:
    if file is not None:
        return np.fromfile(file, dtype, count)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(source.read_bytes() for source in sources), np.uint8)[:count]


if __name__ == "__main__":
    main()
