"""Which documents each instance holds, found once and kept in a file that is mapped when it is read."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.once import make_once
from olmo_hydra.data.files.places import version
from olmo_hydra.data.files.token_file import TokenFile
from olmo_hydra.data.instances.packing import documents, pack

VERSION = "documents-v1"  # of the rules: part of every fingerprint of data that is packed or padded
FORMAT = 2  # of the file: with the version part of its name
SAMPLE = 1024  # tokens of the beginning, the middle and the end of a file that decide whether it is the same
STRETCH, SAMPLES = 1 << 18, 256  # bytes of an index that are hashed together; how many of them in a large one
DOCUMENT = np.dtype([("file", "<u4"), ("start", "<u8"), ("length", "<u4")])

How = Literal["packed", "padded"]


class Whole(NamedTuple):
    """What a file of an index holds, the lengths of the arrays before all.

    `kept` is one number, the tokens of all instances. Group g has the instances `[firsts[g]:firsts[g + 1]]`, and
    instance i the documents `[bounds[i]:bounds[i + 1]]`.
    """

    kept: np.ndarray
    firsts: np.ndarray
    bounds: np.ndarray
    documents_N: np.ndarray


TYPES = (np.dtype(np.int64), np.dtype(np.int64), np.dtype(np.int64), DOCUMENT)


@dataclass(frozen=True)
class Index:
    """The documents of every instance. Picklable: the file is opened where it is read.

    Attributes:
      file: What `Whole` describes.
      firsts: The first instance of each group of files, and their number.
      kept: Tokens of all instances.
    """

    file: Path
    firsts: list[int]
    kept: int

    @classmethod
    def of(
        cls, files: Sequence[TokenFile], groups: Sequence[Sequence[int]], seq_len: int, end: int, how: How, folder: Path
    ) -> "Index":
        """The index of token files, made if it is not there. Another process that wants it meanwhile waits.

        Args:
          files: Token files.
          groups: By number, the files whose documents may share an instance.
          seq_len: Tokens an instance. A longer document is cut there.
          end: The token that ends a document, and belongs to it.
          how: `packed` by best fit, or `padded`, one document an instance.
          folder: Where indices are kept, by what they are of.

        Raises:
          RequestError: A file cannot be read, or the index cannot be written.
        """
        content = [(file.name, file.n_tokens, str(file.dtype), version(file.path), _sample(file)) for file in files]
        recipe = json.dumps([VERSION, FORMAT, how, seq_len, end, [list(group) for group in groups], content])
        file = folder / f"{how}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.bin"

        def write(partial: Path) -> None:
            found = [_group(files, group, seq_len, end, how) for group in groups]
            sizes = np.concatenate([np.diff(bounds) for bounds, _ in found])
            documents_N = np.concatenate([of_group for _, of_group in found])
            whole = Whole(
                documents_N["length"].sum(dtype=np.int64, keepdims=True),
                np.cumsum([0, *(len(bounds) - 1 for bounds, _ in found)], dtype=np.int64),
                np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
                documents_N,
            )
            with partial.open("wb") as out:
                np.array([len(array) for array in whole], np.int64).tofile(out)
                for array in whole:
                    array.tofile(out)
            content_hash = _hash(partial, partial.stat().st_size)
            with partial.open("ab") as out:
                out.write(content_hash)

        make_once(file, write)
        whole = _mapped(file)
        return cls(file, whole.firsts.tolist(), int(whole.kept[0]))

    def documents(self, instance: int) -> list[tuple[int, int, int]]:
        """File, first token and length of each document of an instance."""
        _, _, bounds, documents_N = _mapped(self.file)
        return documents_N[bounds[instance] : bounds[instance + 1]].tolist()

    def holding(self, file: int, start: int, length: int) -> list[int]:
        """The instances with documents that have any of `length` tokens of a file, from `start` on."""
        _, _, bounds, documents_N = _mapped(self.file)
        begins_N, lengths_N = documents_N["start"].astype(np.int64), documents_N["length"].astype(np.int64)
        touched_N = (documents_N["file"] == file) & (begins_N < start + length) & (begins_N + lengths_N > start)
        return np.unique(np.searchsorted(bounds, np.flatnonzero(touched_N), side="right") - 1).tolist()


def _group(
    files: Sequence[TokenFile], group: Sequence[int], seq_len: int, end: int, how: How
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the instances of a group, and its documents in their order."""
    of_files = []
    for number in group:
        bounds = documents(files[number].tokens(), end)
        of_file = np.empty(len(bounds) - 1, DOCUMENT)
        of_file["file"], of_file["start"] = number, bounds[:-1]
        of_file["length"] = np.minimum(np.diff(bounds), seq_len)
        of_files.append(of_file)
    documents_N = np.concatenate(of_files)
    if how == "padded":
        return np.arange(len(documents_N) + 1), documents_N
    order, bounds = pack(documents_N["length"], seq_len)
    return bounds, documents_N[order]


def _sample(file: TokenFile) -> str:
    digest = hashlib.sha256()
    for start in (0, file.n_tokens // 2, max(0, file.n_tokens - SAMPLE)):
        digest.update(file.read(start, min(start + SAMPLE, file.n_tokens)).tobytes())
    return digest.hexdigest()


def _hash(file: Path, size: int) -> bytes:
    """Of the first `size` bytes: of all of them, or of evenly spaced stretches of a large file."""
    whole = size <= SAMPLES * STRETCH
    starts = range(0, size, STRETCH) if whole else np.linspace(0, size - STRETCH, SAMPLES, dtype=np.int64).tolist()
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for start in starts:
            opened.seek(start)
            digest.update(opened.read(min(STRETCH, size - start)))
    return digest.digest()


@lru_cache(maxsize=16)
def _mapped(file: Path) -> Whole:
    def arrays() -> Iterator[np.ndarray]:
        size, at = file.stat().st_size - hashlib.sha256().digest_size, 8 * len(TYPES)
        lengths = np.fromfile(file, np.int64, len(TYPES)).tolist()
        is_whole = len(lengths) == len(TYPES) and at + np.dot(lengths, [dtype.itemsize for dtype in TYPES]) == size
        if not is_whole or np.fromfile(file, np.uint8, offset=size).tobytes() != _hash(file, size):
            raise RequestError("is no whole index of documents", where=str(file), instead="delete the file")
        for length, dtype in zip(lengths, TYPES, strict=True):
            # Nothing cannot be mapped.
            yield np.memmap(file, dtype, "r", at, (length,)) if length else np.zeros(0, dtype)
            at += length * dtype.itemsize

    return Whole(*arrays())
