"""Safetensors files: eight bytes of length, a JSON header, then the bytes of each tensor.

Read and written one tensor at a time. The package of that name maps a whole file to read and takes all tensors of a
file at once to write.
"""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

from olmo_hydra.config.errors import RequestError, show

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NO_HEADER = "its header is not that of a safetensors file"
MAX_HEADER = 100_000_000  # bytes, as the reference implementation allows
BLOCK = 1 << 24  # bytes converted or transposed at a time


@dataclass(frozen=True)
class Entry:
    """One tensor: dtype code, shape, and the bytes of the file it takes."""

    file: Path
    code: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> np.dtype:
        """Raises RequestError for a format that no parameter of ours has (integers, float8)."""
        if self.code not in DTYPES:
            raise RequestError(f"its dtype {self.code} is not read", where=str(self.file), instead=", ".join(DTYPES))
        return DTYPES[self.code]


def header(file: Path) -> dict[str, Entry]:
    """The tensors of a file, none of them read.

    Raises:
      RequestError: The file cannot be read, is cut off, or is no safetensors file.
    """
    try:
        refuse_irregular(file)
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER):
                raise _damaged(file, f"its header is cut off: the file has {size} bytes")
            content = json.loads(opened.read(length))
            content.pop("__metadata__", None)
            entries = {name: _entry(file, name, 8 + length, tensor) for name, tensor in content.items()}
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", where=str(file)) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, NO_HEADER) from error
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            raise _damaged(file, f"the bytes of {name} begin at {entry.start}, not at {end}")
        if entry.end > size:
            raise _damaged(file, f"{name} is cut off: it ends at byte {entry.end} of {size}")
        if entry.code in DTYPES and entry.end - entry.start != prod(entry.shape) * entry.dtype.itemsize:
            raise _damaged(file, f"{name} has {entry.end - entry.start} bytes for {entry.code} {list(entry.shape)}")
        end = entry.end
    if end != size:
        raise _damaged(file, f"has {size - end} bytes after the last tensor")
    return entries


def read(entry: Entry, out: np.ndarray | None = None) -> np.ndarray:
    """One tensor, into `out` (contiguous, of its shape and dtype) if that is given."""
    tensor = np.empty(entry.shape, entry.dtype) if out is None else out
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.start)
            if file.readinto(_bytes(tensor)) != tensor.nbytes:
                raise _damaged(entry.file, f"is cut off before byte {entry.end}")
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", where=str(entry.file)) from error
    return tensor


def create(file: Path, tensors: dict[str, tuple[np.dtype, tuple[int, ...]]]) -> dict[str, Entry]:
    """Makes a file of the full size with its header, in which the bytes of the tensors are still to be written."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = Entry(file, CODES[dtype], shape, start, end)
    content: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, entry in entries.items():
        content[name] = {"dtype": entry.code, "shape": entry.shape, "data_offsets": (entry.start, entry.end)}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    offset = 8 + len(text)
    return {
        name: Entry(file, entry.code, entry.shape, offset + entry.start, offset + entry.end)
        for name, entry in entries.items()
    }


def write(entry: Entry, tensor: np.ndarray) -> int:
    """Writes one tensor, of any strides and dtype, into a file that `create` made.

    Returns how many numbers are so small that the dtype of the file has not all of their digits, or none.

    Raises:
      OverflowError: A finite number is not finite in the dtype of the file; a part has been written.
    """
    assert tensor.shape == entry.shape
    smallest, small = ml_dtypes.finfo(entry.dtype).smallest_normal, 0
    with entry.file.open("r+b") as file:
        file.seek(entry.start)
        for block in blocks(tensor):
            written = np.ascontiguousarray(narrowed(block, entry.dtype))
            if tensor.dtype != entry.dtype:
                small += int(((np.abs(written) < smallest) & (written != block)).sum())
            file.write(_bytes(written))
    return small


def narrowed(tensor: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In another dtype. Raises OverflowError where a finite number is not finite in it."""
    if tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore", under="ignore"):
        made = tensor.astype(dtype)
    if (np.isfinite(made) != np.isfinite(tensor)).any():
        raise OverflowError
    return made


def blocks(tensor: np.ndarray) -> Iterator[np.ndarray]:
    """Views of a tensor along its leading axis, each of about `BLOCK` bytes."""
    rows = max(1, BLOCK * len(tensor) // max(tensor.nbytes, 1))
    return (tensor[start : start + rows] for start in range(0, len(tensor), rows))


def refuse_irregular(file: Path) -> None:
    """Raises RequestError for a pipe, a device or a folder, of which a read may never end; OSError where none is."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise RequestError("is no regular file", where=str(file))


def _bytes(tensor: np.ndarray) -> memoryview:
    return memoryview(tensor.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _entry(file: Path, name: str, offset: int, tensor: dict) -> Entry:
    try:
        (start, end), shape = tensor["data_offsets"], tuple(tensor["shape"])
        whole = all(type(number) is int and number >= 0 for number in (start, end, *shape))
        if whole and start <= end:
            return Entry(file, str(tensor["dtype"]), shape, offset + start, offset + end)
    except (KeyError, TypeError, ValueError):
        pass
    raise _damaged(file, f"{NO_HEADER}: {name} has {show(tensor)}")


def _damaged(file: Path, what: str) -> RequestError:
    return RequestError(what, where=str(file), instead="a whole copy of the file")
