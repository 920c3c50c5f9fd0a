"""The global order of instances: OLMo-core's, number for number (allenai/OLMo-core, data/data_loader.py at fa6c501)."""

import os
import threading
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError

VERSION = "pcg64-v1"  # of the rule below: part of every fingerprint, so that another rule never continues a run
BLOCK = 1 << 22  # numbers written at a time


class Order:
    """The orders of all epochs of a corpus, each made when it is first asked for and kept in a file.

    Names and format of the files are OLMo-core's, so that either reads the other's: headerless uint32, no tail dropped.

    Args:
      folder: Where the files are.
      n: Number of instances, below 2^32 - 1.
      seed: With the number of an epoch (from 1) it fixes the permutation.
      chunk: Instances that stay together, so that another sequence length keeps the token order. A rest of n below one
        chunk is not visited.
    """

    def __init__(self, folder: Path, n: int, *, seed: int, chunk: int = 1):
        if n >= 2**32 - 1:
            raise RequestError(f"{n:,} instances do not fit in the uint32 of the order", key="data.seq_len")
        self.folder, self.n, self.seed, self.chunk = folder, n, seed, chunk
        self.length = n // chunk * chunk

    def file(self, epoch: int) -> Path:
        """Where the order of an epoch is kept."""
        chunk = f"_chunk{self.chunk}" if self.chunk > 1 else ""
        return self.folder / f"global_indices{chunk}_dataset_size{self.n}_epoch{epoch}_seed{self.seed}_v1.npy"

    def read(self, epoch: int, start: int, count: int) -> np.ndarray:
        """Instances number `start` to `start + count - 1` of an epoch's order, uint32."""
        file = self.file(epoch)
        if not file.is_file():
            self.make(epoch)
        # Mapped anew each time: an epoch walks through the whole file, and pages of a map that stays would pile up.
        return np.array(np.memmap(file, np.dtype("<u4"), mode="r", offset=4 * start, shape=(count,)))

    def make(self, epoch: int) -> None:
        """Writes the order of an epoch: whole or not at all."""
        chunks = shuffled(self.length // self.chunk, self.seed + epoch)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.file(epoch).with_suffix(f".{os.getpid()}-{threading.get_ident()}.partial")
        with partial.open("wb") as out:
            for start in range(0, len(chunks), BLOCK):
                block = chunks[start : start + BLOCK]
                if self.chunk > 1:
                    inside = np.arange(self.chunk, dtype=np.uint32)
                    block = (block[:, None] * np.uint32(self.chunk) + inside).reshape(-1)
                block.astype("<u4", copy=False).tofile(out)
        partial.replace(self.file(epoch))


def shuffled(n: int, seed: int) -> np.ndarray:
    """0 to n - 1 in the order of PCG64(seed), uint32, made in place."""
    numbers = np.arange(n, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed)).shuffle(numbers)
    return numbers
