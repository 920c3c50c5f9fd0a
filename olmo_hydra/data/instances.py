"""The instances of token files, by number: windows of the token stream, packed documents, or one document each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from olmo_hydra.data.files import TokenFile
from olmo_hydra.data.packing import documents, pack


class Span(NamedTuple):
    """Consecutive tokens of a file: its number, the first token, how many."""

    file: int
    start: int
    length: int


@dataclass(frozen=True)
class Part:
    """`size` consecutive instances from number `first` on that come from the same files, given by number."""

    first: int
    size: int
    files: tuple[int, ...]


class Source(Protocol):
    """Instances of at most T tokens, numbered from 0; what they lack is padding.

    `dropped` tokens of the files are in none; `padding` fills the instances up; `parts` says in order where they come
    from, each instance in one part.
    """

    dropped: int
    padding: int
    parts: list[Part]

    def __len__(self) -> int: ...

    def spans(self, i: int) -> list[Span]:
        """The pieces of instance `i`, in order."""
        ...


class Windows:
    """Every file cut on its own, numbered through all files. What is left of a file is dropped.

    Same numbers as OLMo-core's fixed-length dataset.

    Args:
      files: Token files.
      seq_len: Tokens an instance.
      chunk: Consecutive instances that stay together: a file has a multiple of them.
    """

    padding = 0

    def __init__(self, files: Sequence[TokenFile], seq_len: int, chunk: int = 1):
        self._seq_len = seq_len
        counts = [file.n_tokens // (seq_len * chunk) * chunk for file in files]
        self._starts = np.cumsum([0, *counts])
        self.dropped = sum(file.n_tokens for file in files) - len(self) * seq_len
        self.parts = [Part(int(self._starts[i]), count, (i,)) for i, count in enumerate(counts)]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def spans(self, i: int) -> list[Span]:
        file = int(np.searchsorted(self._starts, i, side="right")) - 1
        return [Span(file, (i - int(self._starts[file])) * self._seq_len, self._seq_len)]


class Packed:
    """Documents packed by best fit, those of `pack_files` consecutive files together; numbered in order of creation.

    A document is its tokens and the end after them; a longer one than `seq_len` is cut there. What it loses is dropped,
    and so is what follows the last end of a file. Same instances as OLMo-core's packed dataset with `truncate`, but for
    documents of equal length (see `pack`).
    """

    def __init__(self, files: Sequence[TokenFile], seq_len: int, pack_files: int, end: int):
        numbers = range(len(files))
        groups = [numbers[i : i + pack_files] for i in numbers[::pack_files]]
        packed = [self._group(files, group, seq_len, end) for group in groups]
        # Of each document, in the order of instances: its file, where it starts there, its length.
        self._documents_N3 = np.concatenate([documents_N3 for documents_N3, _ in packed])
        sizes = np.concatenate([np.diff(bounds) for _, bounds in packed])
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        firsts = np.cumsum([0, *(len(bounds) - 1 for _, bounds in packed)]).tolist()
        self.parts = [Part(firsts[i], firsts[i + 1] - firsts[i], tuple(group)) for i, group in enumerate(groups)]
        kept = int(self._documents_N3[:, 2].sum())
        self.dropped = sum(file.n_tokens for file in files) - kept
        self.padding = len(self) * seq_len - kept

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def spans(self, i: int) -> list[Span]:
        return [Span(*row) for row in self._documents_N3[self._bounds[i] : self._bounds[i + 1]].tolist()]

    def _group(
        self, files: Sequence[TokenFile], group: Sequence[int], seq_len: int, end: int
    ) -> tuple[np.ndarray, np.ndarray]:
        of_files = []
        for number in group:
            bounds = documents(files[number].tokens(), end)
            lengths = np.minimum(np.diff(bounds), seq_len)
            of_files.append(np.stack([np.full_like(lengths, number), bounds[:-1], lengths], axis=1))
        documents_N3 = np.concatenate(of_files)
        order, bounds = pack(documents_N3[:, 2], seq_len)
        return documents_N3[order], bounds
