"""The instances of token files, by number: windows of the token stream, packed documents, or one document each."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

from olmo_hydra.data.files.token_file import TokenFile
from olmo_hydra.data.instances.document_index import How, Index


class Span(NamedTuple):
    """Consecutive tokens of a file: its number, the first token, how many."""

    file: int
    start: int
    length: int

    @property
    def stop(self) -> int:
        """The token after the last."""
        return self.start + self.length


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

    def holding(self, span: Span) -> list[int]:
        """The instances that hold any token of `span`, in order."""
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
        self._starts = [0, *accumulate(counts)]
        self.dropped = sum(file.n_tokens for file in files) - len(self) * seq_len
        self.parts = [Part(self._starts[i], count, (i,)) for i, count in enumerate(counts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def spans(self, i: int) -> list[Span]:
        file = bisect_right(self._starts, i) - 1
        return [Span(file, (i - self._starts[file]) * self._seq_len, self._seq_len)]

    def holding(self, span: Span) -> list[int]:
        first, size = self._starts[span.file], self.parts[span.file].size
        windows = range(span.start // self._seq_len, min((span.stop - 1) // self._seq_len + 1, size))
        return [first + window for window in windows]


class _Documents:
    """Instances of whole documents, found once and kept in a file.

    A document is its tokens and the end after them; a longer one than `seq_len` is cut there. What it loses is dropped,
    and so is what follows the last end of a file.
    """

    def __init__(
        self,
        files: Sequence[TokenFile],
        seq_len: int,
        groups: Sequence[Sequence[int]],
        end: int,
        folder: Path,
        how: How,
    ):
        self._index = Index.of(files, groups, seq_len, end, how, folder)
        firsts, kept = self._index.firsts, self._index.kept
        self.parts = [Part(firsts[i], firsts[i + 1] - firsts[i], tuple(group)) for i, group in enumerate(groups)]
        self.dropped = sum(file.n_tokens for file in files) - kept
        self.padding = len(self) * seq_len - kept

    def __len__(self) -> int:
        return self._index.firsts[-1]

    def spans(self, i: int) -> list[Span]:
        return [Span(*document) for document in self._index.documents(i)]

    def holding(self, span: Span) -> list[int]:
        return self._index.holding(*span)


class Packed(_Documents):
    """Documents packed by best fit, those of `pack_files` consecutive files together; numbered in order of creation.

    Same instances as OLMo-core's packed dataset with `truncate`, but for documents of equal length (see `pack`).

    Args:
      files: Token files.
      seq_len: Tokens an instance.
      pack_files: Files whose documents are packed together.
      end: The token that ends a document.
      folder: Where the packing is kept.
    """

    def __init__(self, files: Sequence[TokenFile], seq_len: int, pack_files: int, end: int, folder: Path):
        numbers = range(len(files))
        groups = [numbers[i : i + pack_files] for i in numbers[::pack_files]]
        super().__init__(files, seq_len, groups, end, folder, "packed")


class Padded(_Documents):
    """Documents one by one, in file order: the instances of OLMo-core's padded dataset.

    Args:
      files: Token files.
      seq_len: Tokens an instance.
      end: The token that ends a document.
      folder: Where the list of documents is kept.
    """

    def __init__(self, files: Sequence[TokenFile], seq_len: int, end: int, folder: Path):
        super().__init__(files, seq_len, [[i] for i in range(len(files))], end, folder, "padded")
