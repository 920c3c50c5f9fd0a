"""From token files to the global batches of a run. Shapes: B instances of a global batch, T tokens of an instance."""

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import grain
import numpy as np
from numpy.typing import DTypeLike

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.order import global_batches

IGNORED = -100
READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


@dataclass(frozen=True, eq=False)
class Batch:
    """Global batch `n` (from 0) of a run.

    `labels_BT[b, t]` is the target of position t, the token that follows it; the last position has none (-100). The
    token after the end of a document is a target like any other.
    """

    n: int
    epoch: int
    instances_B: np.ndarray  # uint32, numbers of the instances
    tokens_BT: np.ndarray  # int32
    labels_BT: np.ndarray  # int32
    segments_BT: np.ndarray | None = None  # int32, number of the document inside its instance; None: no masking


class Batches:
    """The global batches of a run as a pure function of their number.

    Every file is cut on its own into instances of `seq_len` tokens, numbered through all files; what is left of a file
    is dropped (`dropped_tokens` in all). Same numbers as OLMo-core's fixed-length dataset.

    Args:
      files: Headerless little-endian token files, in the order that numbers the instances.
      seq_len: Tokens an instance (T).
      global_batch: Instances an update (B).
      seed: Seed of the order.
      dtype: Integer type of the tokens in the files.

    Raises:
      RequestError: A file is no token file, or the files hold less than one global batch.
    """

    def __init__(
        self, files: Sequence[Path], *, seq_len: int, global_batch: int, seed: int, dtype: DTypeLike = np.uint16
    ):
        self.seq_len = seq_len
        self.global_batch = global_batch
        item = np.dtype(dtype).newbyteorder("<")
        lengths = [token_count(file, item) for file in files]
        counts = [length // seq_len for length in lengths]
        self._windows = [
            np.memmap(file, item, mode="r", shape=(count, seq_len))
            for file, count in zip(files, counts, strict=True)
            if count  # an empty file cannot be mapped
        ]
        self._starts = np.cumsum([0, *map(len, self._windows)])
        self.n_instances = sum(counts)
        self.dropped_tokens = sum(lengths) - self.n_instances * seq_len
        self.batches_per_epoch = self.n_instances // global_batch
        if self.batches_per_epoch == 0:
            raise RequestError(
                f"more than the {self.n_instances} instances of {seq_len} tokens that the training files hold",
                key="train.global_batch",
                value=global_batch,
                instead=f"train.global_batch={self.n_instances} at most"
                if self.n_instances
                else "a shorter data.seq_len",
            )
        # An epoch's order is kept; two, since reading ahead crosses from one epoch into the next.
        self._epoch_order = lru_cache(maxsize=2)(
            lambda epoch: global_batches(self.n_instances, global_batch, seed=seed, epoch=epoch)
        )

    def batch(self, n: int) -> Batch:
        """Global batch `n` of the run, from 0. Epoch follows epoch, each in its own order."""
        epoch, row = divmod(n, self.batches_per_epoch)
        instances_B = self._epoch_order(epoch + 1)[row]
        tokens_BT = np.stack([self._instance(int(i)) for i in instances_B]).astype(np.int32)
        labels_BT = np.full_like(tokens_BT, IGNORED)
        labels_BT[:, :-1] = tokens_BT[:, 1:]
        return Batch(n, epoch + 1, instances_B, tokens_BT, labels_BT)

    def iterate(self, start: int) -> Generator[Batch]:
        """Global batches `start`, `start + 1`, ... without end, read ahead by threads that stop when this is closed."""
        batches = iter(grain.MapDataset.range(start, sys.maxsize).map(self.batch).to_iter_dataset(READ_AHEAD))
        try:
            yield from batches
        finally:
            batches.close()

    def _instance(self, i: int) -> np.ndarray:
        file = int(np.searchsorted(self._starts, i, side="right")) - 1
        return self._windows[file][i - self._starts[file]]


def token_count(file: Path, dtype: DTypeLike) -> int:
    """Number of tokens in a headerless file of `dtype`. Raises RequestError for a file that is something else."""
    size, item = file.stat().st_size, np.dtype(dtype).itemsize
    with file.open("rb") as opened:
        if opened.read(6) == b"\x93NUMPY":
            raise RequestError(
                "is a NumPy file with a header, which would be read as tokens",
                where=str(file),
                instead="the array's bytes alone: np.load(file).tofile(other)",
            )
    if size % item:
        raise RequestError(
            f"{size} bytes are no whole number of {item}-byte tokens", where=str(file), instead="a complete file"
        )
    return size // item
