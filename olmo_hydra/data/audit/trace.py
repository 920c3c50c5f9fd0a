"""From an update to the documents it reads, and from a document to the updates that read it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from olmo_hydra.config.errors import RequestError, printable
from olmo_hydra.data.companion import ENDING, entries
from olmo_hydra.data.files.token_file import TokenFile
from olmo_hydra.data.instances.kinds import Source, Span
from olmo_hydra.data.loader import Batches
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer

SEARCHED = 1 << 14  # tokens that are decoded together
READ_TOGETHER = 1 << 22  # instances of an order that are looked at together


class Names(NamedTuple):
    """The documents of a token file in order: where each starts, where it ends, and its name."""

    starts: list[int]
    ends: list[int]
    names: list[str]

    def at(self, token: int) -> str | None:
        """The name of the document that a token is of."""
        i = bisect_right(self.starts, token) - 1
        return self.names[i] if i >= 0 and token < self.ends[i] else None


def pieces(source: Source, files: Sequence[TokenFile], instance: int, end: int) -> list[Span]:
    """The documents of an instance, or what of them is in it, in order.

    Args:
      source: The instances.
      files: Their token files.
      instance: By number.
      end: The token that ends a document.
    """
    found = []
    for file, start, length in source.spans(instance):
        ends = np.flatnonzero(files[file].read(start, start + length) == end) + 1
        bounds = sorted({0, *ends.tolist(), length})
        found += [Span(file, start + a, b - a) for a, b in pairwise(bounds)]
    return found


def excerpt(piece: Span, files: Sequence[TokenFile], tokenizer: Tokenizer, n_characters: int) -> str:
    """The beginning of a piece's text, printable."""
    return printable(_beginning(piece, files, tokenizer, n_characters))


def lines(piece: Span, files: Sequence[TokenFile], tokenizer: Tokenizer, n_characters: int) -> str:
    """As `excerpt`, in the lines that the text has."""
    text = _beginning(piece, files, tokenizer, n_characters).expandtabs()
    return "\n".join(printable(line) for line in text.split("\n"))


def _beginning(piece: Span, files: Sequence[TokenFile], tokenizer: Tokenizer, n_characters: int) -> str:
    tokens = files[piece.file].read(piece.start, min(piece.stop, piece.start + 4 * n_characters))
    return tokenizer.decode(tokens)[:n_characters]


@lru_cache(maxsize=64)
def names_of(file: TokenFile) -> Names | None:
    """The documents of a file by the `.csv.gz` beside it; None if there is none.

    Raises:
      RequestError: It cannot be read.
    """
    if not isinstance(file.path, Path) or not (index := file.path.with_suffix(ENDING)).is_file():
        return None
    found = Names([], [], [])
    for entry in entries(index):
        found.starts.append(entry.start)
        found.ends.append(entry.end)
        found.names.append(entry.name)
    return found


def named(files: Sequence[TokenFile], name: str) -> list[Span]:
    """The documents of a name. Raises RequestError if no file says what its documents are called."""
    indices = [names_of(file) for file in files]
    if not any(indices):
        raise RequestError(
            "no token file has an index (.csv.gz) of its documents beside it",
            key="--document",
            value=name,
            instead="--find TEXT, or --file FILE --offset TOKEN",
        )
    return [
        Span(file, index.starts[i], index.ends[i] - index.starts[i])
        for file, index in enumerate(indices)
        if index is not None
        for i, one in enumerate(index.names)
        if one == name
    ]


def containing(files: Sequence[TokenFile], file: int, text: str, tokenizer: Tokenizer) -> Iterator[Span]:
    """Where a file's documents have a text. They are decoded: it does not matter how the text was cut into tokens.

    Args:
      files: Token files.
      file: The number of the one to search.
      text: Exactly as it stands in a document.
      tokenizer: Of the files.
    """
    n_tokens = files[file].n_tokens
    overlap = len(text.encode()) + 4  # a token is a byte at least, and the character at the border has four at most
    for start in range(0, n_tokens, SEARCHED):
        tokens = files[file].read(start, min(start + SEARCHED + overlap, n_tokens))
        decoded = tokenizer.decode(tokens)
        at = decoded.find(text)
        while at >= 0:
            first, last = _place(tokens, at, text, tokenizer)
            if first >= SEARCHED:
                break  # the next stretch has it too
            if not (tokens[first:last] == tokenizer.eos).any():
                yield Span(file, start + first, last - first)
            at = decoded.find(text, at + 1)


def _place(tokens: np.ndarray, at: int, text: str, tokenizer: Tokenizer) -> tuple[int, int]:
    """First token of a text that stands at character `at` of what `tokens` say, and the token after its last."""
    counts = range(1, len(tokens) + 1)
    first = bisect_left(counts, True, key=lambda n: len(tokenizer.decode(tokens[:n])) > at)
    stop = at + len(text)
    last = bisect_left(counts, True, key=lambda n: tokenizer.decode(tokens[:n])[at:stop] == text)
    return first, last + 1


def batches_with(batches: Batches, instances: Sequence[int], epoch: int) -> dict[int, list[int]]:
    """Of each instance the numbers of the global batches (from 0) of an epoch that hold it; none of what is in none."""
    wanted = np.unique(np.array(instances, np.uint32))
    found: dict[int, list[int]] = {int(i): [] for i in wanted}
    per_epoch = batches.sampler.batches_per_epoch
    first, count = (epoch - 1) * per_epoch, max(1, READ_TOGETHER // batches.sampler.global_batch)
    for row in range(0, per_epoch, count):
        block = batches.instances(first + row, min(count, per_epoch - row))
        for at, column in np.argwhere(np.isin(block, wanted)).tolist():
            found[int(block[at, column])].append(first + row + at)
    return found
