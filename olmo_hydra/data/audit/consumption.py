"""Simulates what the processes of a run read, by its own batches, and counts it.

Shapes: n instances of a batch, B of them; P parts of the corpus; K pieces of an epoch; N processes.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from olmo_hydra.data.instances.kinds import Part
from olmo_hydra.data.loader import Batches

READ_TOGETHER = 1 << 22  # instances that are looked at together: bounds the memory beside the counts
PIECES = 100  # of an epoch, of which each says how much of it had been read before
MANY = 255  # counts stop here


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the processes read of one epoch.

    `once_P`, `never_P` and `repeated_P` count the instances of each part, `reads` what was read, repeats included.
    `run_reads_P` are the reads up to the end of the run. `batches_K` are the batches of each piece, `repeats_KN` how
    many reads of it, by process, were of instances that had been read before. `differing` batches, of which
    `first_differing` is the first, are not the set that a single process would read. `widths_N` are the instances of a
    batch that each process reads.
    """

    epoch: int
    once_P: np.ndarray
    never_P: np.ndarray
    repeated_P: np.ndarray
    run_reads_P: np.ndarray
    reads: int
    batches_K: np.ndarray
    repeats_KN: np.ndarray
    differing: int
    first_differing: int | None
    widths_N: tuple[int, ...]

    @property
    def distinct(self) -> int:
        """Instances that were read at all."""
        return int(self.once_P.sum() + self.repeated_P.sum())


def simulate(
    batches: Batches,
    epoch: int,
    *,
    steps: int,
    processes: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> Epoch:
    """Reads the order of an epoch as the processes of a run would, whole, also where the run ends in it.

    Args:
      batches: The run's.
      epoch: From 1.
      steps: Batches of the run.
      processes: How many read; they divide the batch.
      progress: Told the share that is done.
    """
    parts, per_epoch = batches.source.parts, batches.sampler.batches_per_epoch
    counts = np.zeros(batches.sampler.n_instances, np.uint8)
    first = (epoch - 1) * per_epoch
    end = min(max(steps - first, 0), per_epoch)  # where the run ends, as a row of this epoch
    repeats, differing, reads = [], [], 0
    run_reads_P = np.zeros(len(parts), np.int64)
    pieces = list(_pieces(per_epoch, batches.sampler.global_batch, end))
    for piece, (row, count) in zip(_ahead(partial(_read, batches, first, processes), pieces), pieces, strict=True):
        repeats.append([_mark(counts, read) for read in piece.sorted_N])
        reads += sum(map(len, piece.sorted_N))
        differing += piece.differing
        if row + count == end:
            run_reads_P = _by_part(counts, parts)[2]
        progress((row + count) / per_epoch)
    once_P, repeated_P, _ = _by_part(counts, parts)
    never_P = np.array([part.size for part in parts], np.int64) - once_P - repeated_P
    return Epoch(
        epoch,
        once_P,
        never_P,
        repeated_P,
        run_reads_P,
        reads,
        np.array([count for _, count in pieces], np.int64),
        np.array(repeats, np.int64),
        len(differing),
        differing[0] if differing else None,
        piece.widths_N,
    )


def _pieces(per_epoch: int, global_batch: int, end: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece of an epoch; one ends where the run does."""
    size = max(1, min(READ_TOGETHER // global_batch, -(-per_epoch // PIECES)))
    row = 0
    while row < per_epoch:
        stop = min(row + size, per_epoch)
        if row < end < stop:
            stop = end
        yield row, stop - row
        row = stop


class _Piece(NamedTuple):
    """What the processes read of some batches: each one's instances, sorted, and how many of a batch; batches that are
    not what a single process would read.
    """

    sorted_N: list[np.ndarray]
    widths_N: tuple[int, ...]
    differing: list[int]


def _read(batches: Batches, first: int, processes: int, row: int, count: int) -> _Piece:
    read_N = [batches.instances(first + row, count, process, processes) for process in range(processes)]
    whole = read_N[0] if processes == 1 else batches.instances(first + row, count)
    differing = [first + row + i for i in _differing(read_N, whole)]
    return _Piece([np.sort(read, axis=None) for read in read_N], tuple(read.shape[1] for read in read_N), differing)


def _ahead(read: Callable[[int, int], _Piece], pieces: Sequence[tuple[int, int]]) -> Iterator[_Piece]:
    """The pieces in order; a thread reads and sorts the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        waiting = [thread.submit(read, *pieces[0])]
        for piece in pieces[1:]:
            waiting.append(thread.submit(read, *piece))
            yield waiting.pop(0).result()
        yield waiting.pop().result()


def _differing(read_N: Sequence[np.ndarray], whole: np.ndarray) -> list[int]:
    """Rows whose instances, of all processes together, are not those of `whole`."""
    together = np.concatenate(read_N, axis=1)
    if together.shape != whole.shape:
        return list(range(len(whole)))
    if len(set(map(np.shape, read_N))) == 1 and np.array_equal(np.stack(read_N, axis=2).reshape(whole.shape), whole):
        return []  # every N-th, in order: much faster than sorting
    return np.flatnonzero((np.sort(together, axis=1) != np.sort(whole, axis=1)).any(axis=1)).tolist()


def _mark(counts: np.ndarray, read: np.ndarray) -> int:
    """Counts instances, sorted, as read; gives how many of these reads were of one that had been read before."""
    is_first = np.ones(len(read), bool)
    np.not_equal(read[1:], read[:-1], out=is_first[1:])
    if is_first.all():
        instances, times = read, np.ones(1, np.uint16)
    else:
        firsts = np.flatnonzero(is_first)
        instances, times = read[firsts], np.minimum(np.diff(firsts, append=len(read)), MANY).astype(np.uint16)
    before = counts[instances]
    counts[instances] = np.minimum(before + times, MANY).astype(np.uint8)
    return len(read) - int(np.count_nonzero(before == 0))


def _by_part(counts: np.ndarray, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each part: instances that were read once, those that were read more often, and all reads."""
    once_P, repeated_P, reads_P = (np.zeros(len(parts), np.int64) for _ in range(3))
    for number, part in enumerate(parts):
        for start in range(part.first, part.first + part.size, READ_TOGETHER):
            block = counts[start : min(start + READ_TOGETHER, part.first + part.size)]
            once = np.count_nonzero(block == 1)
            once_P[number] += once
            repeated_P[number] += np.count_nonzero(block) - once
            reads_P[number] += block.sum(dtype=np.int64)
    return once_P, repeated_P, reads_P
