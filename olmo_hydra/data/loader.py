"""From token files to the batches of a run. Shapes: B instances of a batch, T tokens of an instance, L labels."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from multiprocessing import resource_tracker

import grain
import numpy as np
from absl import flags

from olmo_hydra.data.files.token_file import TokenFile, tokens_of
from olmo_hydra.data.instances.kinds import Source
from olmo_hydra.data.instances.repetition import repeats
from olmo_hydra.data.sampler import Sampler
from olmo_hydra.data.signals import STOPPING, kept_from_children

IGNORED = -100
AHEAD = 4  # batches read ahead


@dataclass(frozen=True, eq=False)
class Batch:
    """What one process reads of global batch `n` (from 0) of a run.

    `labels_BT[b, t]` is the target of position t, the token that follows it; the last position has none (-100), nor has
    one that padding follows. The token after the end of a document is a target like any other, also where documents do
    not see each other: so it is in OLMo-core (`get_labels` in data/utils.py of allenai/OLMo-core 3.0.0).
    """

    n: int
    epoch: int
    row: int  # in its epoch, from 0
    instances_B: np.ndarray  # uint32, numbers of the instances
    tokens_BT: np.ndarray  # int32
    labels_BT: np.ndarray  # int32
    segments_BT: np.ndarray | None  # int32, number of the document inside its instance; None: no masking
    by_label_BL: np.ndarray  # int32, tokens of each instance by label, padding not counted
    masked_B: np.ndarray  # bool, instances without targets since the repetition filter caught them


@dataclass(frozen=True)
class Cut:
    """How an instance's tokens become inputs and targets.

    Args:
      seq_len: Tokens an instance (T).
      vocab_size: Ids that may occur.
      end: The token that ends a document.
      pad: The token that fills up an instance.
      document_mask: Whether batches say which document each token belongs to.
      repetition_filter: Whether instances that repeat themselves have no targets.
      filter_padding: Whether the filter takes padding for text, as OLMo-core's does.
    """

    seq_len: int
    vocab_size: int
    end: int
    pad: int
    document_mask: bool = False
    repetition_filter: bool = False
    filter_padding: bool = False


class Batches:
    """The batches of a run as a pure function of their number. Picklable: a worker process opens the files itself.

    Args:
      files: Token files, in the order that numbers the instances.
      source: Their instances.
      sampler: Which instances a batch holds.
      cut: How they become inputs and targets.
    """

    def __init__(self, files: Sequence[TokenFile], source: Source, sampler: Sampler, cut: Cut):
        self.files, self.source, self.sampler, self.cut = list(files), source, sampler, cut
        self.labels = list(dict.fromkeys(file.label for file in files))
        numbers = {label: i for i, label in enumerate(self.labels)}
        self._label_of_file = [numbers[file.label] for file in files]

    def instances(self, first: int, count: int, process: int = 0, processes: int = 1) -> np.ndarray:
        """What a process reads of global batches `first`, `first + 1`, ...: instances, uint32 of shape (count, B).

        `batch` reads these, and the audit counts these. Raises what `Sampler.take` raises.
        """
        return self.sampler.take(first, count, process, processes)

    def batch(self, n: int, process: int = 0, processes: int = 1) -> Batch:
        """The part of global batch `n` that a process reads. Epoch follows epoch, each in its own order.

        Raises:
          RequestError: A file or the order cannot be read, or a token is past the vocabulary.
        """
        instances_B = self.instances(n, 1, process, processes)[0]
        shape_BT = (len(instances_B), self.cut.seq_len)
        tokens_BT, labels_BT = np.empty(shape_BT, np.int32), np.empty(shape_BT, np.int32)
        segments_BT = np.zeros(shape_BT, np.int32) if self.cut.document_mask else None
        by_label_BL = np.zeros((len(instances_B), len(self.labels)), np.int32)
        for b, i in enumerate(instances_B.tolist()):
            filled = 0
            for file, start, length in self.source.spans(i):
                here = slice(filled, filled + length)
                tokens_BT[b, here] = tokens_of(self.files, file, start, length, self.cut.vocab_size)
                shifted = slice(max(filled - 1, 0), filled + length - 1)  # a target stands before its token
                labels_BT[b, shifted] = tokens_BT[b, shifted.start + 1 : filled + length]
                if mask := self.files[file].mask:
                    may_be = mask.read(start, start + length)[filled == 0 :]
                    labels_BT[b, shifted][~may_be] = IGNORED
                by_label_BL[b, self._label_of_file[file]] += length
                filled += length
            tokens_BT[b, filled:] = self.cut.pad
            labels_BT[b, max(filled - 1, 0) :] = IGNORED
            if segments_BT is not None:
                segments_BT[b] = document_numbers(tokens_BT[b, :filled], self.cut.end, self.cut.seq_len)
        masked_B = np.zeros(len(instances_B), bool)
        if self.cut.repetition_filter:
            text_B = by_label_BL.sum(axis=1)
            masked_B = repeats(tokens_BT, np.full_like(text_B, shape_BT[1]) if self.cut.filter_padding else text_B)
            labels_BT[masked_B] = IGNORED
        place = self.sampler.place(n)
        return Batch(n, place.epoch, place.row, instances_B, tokens_BT, labels_BT, segments_BT, by_label_BL, masked_B)

    def iterate(
        self, start: int, process: int = 0, processes: int = 1, *, threads: int = 2, workers: int = 0
    ) -> Generator[Batch]:
        """Batches `start`, `start + 1`, ... without end, read ahead until this is closed.

        Neither `threads` nor `workers` changes a batch or their order.

        Args:
          start: Number of the first.
          process: Which of `processes` reads.
          processes: That share every batch.
          threads: That read ahead, in each process that reads; 0 reads when asked.
          workers: Processes that read ahead; 0: this one.

        Raises:
          RequestError: What `batch` raises, also where another thread or process read.
        """
        ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=AHEAD)
        numbers = grain.MapDataset.range(start, sys.maxsize)
        fields_of = numbers.map(lambda n: vars(self.batch(n, process, processes)))
        dataset = fields_of.to_iter_dataset(ahead)
        if workers:
            flags.FLAGS.mark_as_parsed()  # grain's own; they are parsed only where absl starts the program
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers), _end_with_the_run)
        read = iter(dataset)
        try:
            with ExitStack() as starting:
                if workers:  # a run that stops after the update at hand still needs them
                    starting.enter_context(kept_from_children(*STOPPING))
                    resource_tracker.ensure_running()  # which ends the blocking of some
                    starting.enter_context(kept_from_children(*STOPPING))
                first = next(read)
            for fields in chain([first], read):
                if workers:  # which hand arrays over in memory that goes away with them; JAX may go on using it
                    fields = {k: np.array(v) if isinstance(v, np.ndarray) else v for k, v in fields.items()}
                yield Batch(**fields)
        finally:
            read.close()


def _end_with_the_run(worker: int, workers: int) -> None:
    threading.Thread(target=_exit_after_the_run, daemon=True).start()


def _exit_after_the_run() -> None:
    # A run that is killed closes nothing, and grain's workers would wait for it for ever.
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(1)


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
