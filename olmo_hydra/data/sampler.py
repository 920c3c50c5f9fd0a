"""Which instances a global batch holds, and which of them a process reads: the only place that says so."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.order import Order


class Row(NamedTuple):
    """Where global batch `n` of a run (from 0) stands: its epoch (from 1) and its row there (from 0)."""

    epoch: int
    row: int


class Sampler:
    """The instances of every global batch, as a pure function of its number.

    An epoch is a permutation of the instances, cut into batches; what is left is dropped, and nothing wraps around.
    Process p of P reads every P-th instance of a batch, from p on: OLMo-core's rule, by which a batch is the same set
    for every P.

    Args:
      n_instances: In the corpus.
      global_batch: Instances a batch (B), at most `n_instances`.
      seed: Of the order.
      chunk: Instances that stay together in the order.
      folder: Where orders are kept.
    """

    def __init__(self, n_instances: int, global_batch: int, *, seed: int, chunk: int = 1, folder: Path):
        self.n_instances = n_instances
        self.global_batch = global_batch
        self.order = Order(folder, n_instances, seed=seed, chunk=chunk)
        self.batches_per_epoch = n_instances // chunk * chunk // global_batch

    def place(self, n: int) -> Row:
        """Epoch and row of global batch `n`."""
        epoch, row = divmod(n, self.batches_per_epoch)
        return Row(epoch + 1, row)

    def take(self, first: int, count: int, process: int = 0, processes: int = 1) -> np.ndarray:
        """What `process` reads of global batches `first`, `first + 1`, ...: uint32 of shape (count, B / processes).

        Raises:
          RequestError: The processes cannot share a batch evenly, or the order cannot be read or written.
        """
        if self.global_batch % processes:
            raise RequestError(
                f"{processes} processes cannot read equal parts of it",
                key="train.global_batch",
                value=self.global_batch,
                instead=f"train.global_batch={-(-self.global_batch // processes) * processes} or other processes",
            )
        parts = []
        while count > 0:
            epoch, row = self.place(first)
            here = min(count, self.batches_per_epoch - row)
            flat = self.order.read(epoch, row * self.global_batch, here * self.global_batch)
            parts.append(flat.reshape(here, self.global_batch)[:, process::processes])
            first, count = first + here, count - here
        return np.concatenate(parts)
