"""From token files to the global batches of a run. Shapes: B instances of a global batch, T tokens of an instance."""

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import grain
import numpy as np

from olmo_hydra.config.data import Instances
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.instances import Packed, Source, Windows, open_tokens
from olmo_hydra.data.order import global_batches

IGNORED = -100
READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


@dataclass(frozen=True, eq=False)
class Batch:
    """Global batch `n` (from 0) of a run.

    `labels_BT[b, t]` is the target of position t, the token that follows it; the last position has none (-100), nor has
    one that padding follows. The token after the end of a document is a target like any other, also where documents do
    not see each other: so it is in OLMo-core (`get_labels` in data/utils.py of allenai/OLMo-core 3.0.0).
    """

    n: int
    epoch: int
    instances_B: np.ndarray  # uint32, numbers of the instances
    tokens_BT: np.ndarray  # int32
    labels_BT: np.ndarray  # int32
    segments_BT: np.ndarray | None = None  # int32, number of the document inside its instance; None: no masking


class Batches:
    """The global batches of a run as a pure function of their number.

    `n_instances` of `seq_len` tokens are in the files; `dropped_tokens` of the files are in none of them, and
    `padding_tokens` fill them up.

    Args:
      files: Headerless little-endian token files, in the order that numbers the instances.
      seq_len: Tokens an instance (T).
      global_batch: Instances an update (B).
      seed: Seed of the order.
      instances: Windows of the token stream, or packed documents. Packing reads every file once, here.
      pack_files: Consecutive files whose documents are packed together; without meaning for windows.
      document_mask: Whether batches say which document each token belongs to.
      end: The token that ends a document.
      pad: The token that fills up an instance.
      dtype: Integer type of the tokens in the files.

    Raises:
      RequestError: A file is no token file, or the files hold less than one global batch.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        seq_len: int,
        global_batch: int,
        seed: int,
        instances: Instances,
        pack_files: int,
        document_mask: bool,
        end: int,
        pad: int,
        dtype: np.dtype,
    ):
        self.seq_len = seq_len
        self.global_batch = global_batch
        self._document_mask = document_mask
        self._end, self._pad = end, pad
        opened = [open_tokens(file, dtype) for file in files]
        self._source: Source
        match instances:
            case Instances.windows:
                self._source = Windows(opened, seq_len)
            case Instances.packed:
                self._source = Packed(opened, seq_len, pack_files, end)
        self.n_instances = len(self._source)
        self.dropped_tokens = self._source.dropped
        self.padding_tokens = self._source.padding
        self.batches_per_epoch = self.n_instances // global_batch
        if self.batches_per_epoch == 0:
            raise self._too_few(instances)
        # An epoch's order is kept; two, since reading ahead crosses from one epoch into the next.
        self._epoch_order = lru_cache(maxsize=2)(
            lambda epoch: global_batches(self.n_instances, global_batch, seed=seed, epoch=epoch)
        )

    def batch(self, n: int) -> Batch:
        """Global batch `n` of the run, from 0. Epoch follows epoch, each in its own order."""
        epoch, row = divmod(n, self.batches_per_epoch)
        instances_B = self._epoch_order(epoch + 1)[row]
        tokens_BT = np.full((self.global_batch, self.seq_len), self._pad, np.int32)
        labels_BT = np.full_like(tokens_BT, IGNORED)
        segments_BT = np.zeros_like(tokens_BT) if self._document_mask else None
        for b, i in enumerate(instances_B):
            text_S = np.concatenate(self._source.read(int(i)))
            tokens_BT[b, : len(text_S)] = text_S
            labels_BT[b, : len(text_S) - 1] = text_S[1:]
            if segments_BT is not None:
                segments_BT[b] = document_numbers(text_S, self._end, self.seq_len)
        return Batch(n, epoch + 1, instances_B, tokens_BT, labels_BT, segments_BT)

    def iterate(self, start: int) -> Generator[Batch]:
        """Global batches `start`, `start + 1`, ... without end, read ahead by threads that stop when this is closed."""
        batches = iter(grain.MapDataset.range(start, sys.maxsize).map(self.batch).to_iter_dataset(READ_AHEAD))
        try:
            yield from batches
        finally:
            batches.close()

    def share(self) -> str:
        """How much of the files the instances hold, and of the instances is padding, as a sentence."""
        room = self.n_instances * self.seq_len
        dropped = self.dropped_tokens / (room - self.padding_tokens + self.dropped_tokens)
        return (
            f"{self.n_instances:,} instances of {self.seq_len:,} tokens, {self.padding_tokens / room:.1%} of them "
            f"padding; {self.dropped_tokens:,} tokens ({dropped:.1%}) of the files are in none"
        )

    def _too_few(self, instances: Instances) -> RequestError:
        if self.n_instances == 0 and instances is Instances.packed:
            return RequestError(
                f"no document ends in the training files (with the token {self._end}), so that there is none to pack",
                key="data.instances",
                value=instances,
                instead="data.instances=windows",
            )
        make = "documents of the training files make" if instances is Instances.packed else "training files hold"
        return RequestError(
            f"more than the {self.n_instances} instances of {self.seq_len} tokens that the {make}",
            key="train.global_batch",
            value=self.global_batch,
            instead=f"train.global_batch={self.n_instances} at most" if self.n_instances else "a shorter data.seq_len",
        )


def document_numbers(text_S: np.ndarray, end: int, seq_len: int) -> np.ndarray:
    """Which document of its instance each position belongs to, int32 from 0: a new one begins after every `end`.

    Args:
      text_S: The tokens without padding, `seq_len` of them or fewer.
      end: The token that ends a document.
      seq_len: Length of the result. All padding is one more document, whatever token pads; in OLMo-core each token of
        it is one where `end` pads (`get_document_lengths` in data/utils.py of allenai/OLMo-core 3.0.0).
    """
    begins_T = np.zeros(seq_len, np.int32)
    begins_T[1 : len(text_S)] = text_S[:-1] == end
    begins_T[len(text_S) : len(text_S) + 1] = 1  # the padding, if there is any
    return np.cumsum(begins_T, dtype=np.int32)
