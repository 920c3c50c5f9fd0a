"""The instances of token files, by number: windows of the token stream, or packed documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.packing import documents, pack


class Source(Protocol):
    """Instances of T tokens, numbered from 0. `dropped` tokens of the files are in none; `padding` fills them up."""

    dropped: int
    padding: int

    def __len__(self) -> int: ...

    def read(self, i: int) -> list[np.ndarray]:
        """The tokens of instance `i` in pieces, T in all or fewer: the rest is padding."""
        ...


class Windows:
    """Every file cut on its own, numbered through all files. What is left of a file is dropped.

    Same numbers as OLMo-core's fixed-length dataset.
    """

    padding = 0

    def __init__(self, files: Sequence[np.ndarray], seq_len: int):
        self._files = files
        self._seq_len = seq_len
        counts = [len(tokens) // seq_len for tokens in files]
        self._starts = np.cumsum([0, *counts])
        self.dropped = sum(map(len, files)) - len(self) * seq_len

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, i: int) -> list[np.ndarray]:
        file = int(np.searchsorted(self._starts, i, side="right")) - 1
        start = (i - int(self._starts[file])) * self._seq_len
        return [self._files[file][start : start + self._seq_len]]


class Packed:
    """Documents packed by best fit, those of `pack_files` consecutive files together; numbered in order of creation.

    A document is its tokens and the end after them; a longer one than `seq_len` is cut there. What it loses is dropped,
    and so is what follows the last end of a file. Same instances as OLMo-core's packed dataset with `truncate`, but for
    documents of equal length (see `pack`).
    """

    def __init__(self, files: Sequence[np.ndarray], seq_len: int, pack_files: int, end: int):
        self._files = files
        numbers = range(len(files))
        groups = [self._group(numbers[i : i + pack_files], seq_len, end) for i in numbers[::pack_files]]
        # Of each document, in the order of instances: its file, where it starts there, its length.
        self._documents_N3 = np.concatenate([documents_N3 for documents_N3, _ in groups])
        sizes = np.concatenate([np.diff(bounds) for _, bounds in groups])
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        packed = int(self._documents_N3[:, 2].sum())
        self.dropped = sum(map(len, files)) - packed
        self.padding = len(self) * seq_len - packed

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def read(self, i: int) -> list[np.ndarray]:
        mine_N3 = self._documents_N3[self._bounds[i] : self._bounds[i + 1]].tolist()
        return [self._files[file][start : start + length] for file, start, length in mine_N3]

    def _group(self, numbers: range, seq_len: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        of_files = []
        for number in numbers:
            bounds = documents(self._files[number], end)
            lengths = np.minimum(np.diff(bounds), seq_len)
            of_files.append(np.stack([np.full_like(lengths, number), bounds[:-1], lengths], axis=1))
        documents_N3 = np.concatenate(of_files)
        order, bounds = pack(documents_N3[:, 2], seq_len)
        return documents_N3[order], bounds


def open_tokens(file: Path, dtype: np.dtype) -> np.ndarray:
    """The tokens of a headerless little-endian file of `dtype`, mapped. Raises RequestError for something else."""
    item = dtype.newbyteorder("<")
    size = file.stat().st_size
    with file.open("rb") as opened:
        if opened.read(6) == b"\x93NUMPY":
            raise RequestError(
                "is a NumPy file with a header, which would be read as tokens",
                where=str(file),
                instead="the array's bytes alone: np.load(file).tofile(other)",
            )
    if size % item.itemsize:
        raise RequestError(
            f"{size} bytes are no whole number of {item.itemsize}-byte tokens",
            where=str(file),
            instead="a complete file",
        )
    return np.memmap(file, item, mode="r") if size else np.zeros(0, item)  # an empty file cannot be mapped
