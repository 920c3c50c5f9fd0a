"""Token files: headerless little-endian integers, as OLMo-core writes them, or NumPy's `.npy` with its header."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError

NPY = b"\x93NUMPY"
TYPES = tuple(np.dtype(name) for name in ("uint8", "<u2", "<u4", "<u8"))


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens, opened when it is read.

    `name` says what it is wherever it lies (its path in the mix); `label` is its domain; `header` bytes precede the
    first token; `mask`, where there is one, is a file of one bool a token: whether it may be a target.
    """

    path: Path
    name: str
    label: str
    n_tokens: int
    dtype: np.dtype
    header: int = 0
    mask: Path | None = None

    def tokens(self) -> np.ndarray:
        """All tokens, mapped."""
        return _mapped(self.path, self.dtype, self.header, self.n_tokens)

    def targets(self) -> np.ndarray | None:
        """Which tokens may be targets, mapped; None: all."""
        return None if self.mask is None else _mapped(self.mask, np.dtype(bool), 0, self.n_tokens)


def token_type(vocab_size: int) -> np.dtype:
    """The smallest unsigned integer that holds every id, which is what OLMo-core's files have."""
    return next(dtype for dtype in TYPES if vocab_size - 1 <= np.iinfo(dtype).max)


def open_file(
    path: Path, dtype: np.dtype, *, label: str, name: str | None = None, mask: Path | None = None
) -> TokenFile:
    """A token file, its size and its header looked at.

    Args:
      path: A local file.
      dtype: Of the tokens; a `.npy` header says its own.
      label: Its domain.
      name: What to call it; its path if not given.
      mask: A file of as many bools.

    Raises:
      RequestError: The file is absent, is no whole number of tokens, has a header that is not of a flat array of
        unsigned integers, or its mask is not as long.
    """
    item, header = dtype.newbyteorder("<"), 0
    try:
        size = path.stat().st_size
        with path.open("rb") as opened:
            if opened.read(len(NPY)) == NPY:
                item, header, size = _npy(path)
    except OSError as error:
        raise RequestError(
            f"the token file cannot be read ({error.strerror})", where=str(path), instead="a file that is there"
        ) from error
    if (size - header) % item.itemsize:
        raise RequestError(
            f"{size - header} bytes are no whole number of {item.itemsize}-byte tokens",
            where=f"{path}, at byte {size - (size - header) % item.itemsize}",
            instead="a complete file, or the data.tokenizer it was written for",
        )
    n_tokens = (size - header) // item.itemsize
    if mask is not None and mask.stat().st_size != n_tokens:
        raise RequestError(
            f"the label mask has {mask.stat().st_size:,} entries for {n_tokens:,} tokens",
            where=str(mask),
            instead=f"one byte a token of {path}",
        )
    return TokenFile(path, name or str(path), label, n_tokens, item, header, mask)


def tokens_of(files: Sequence[TokenFile], file: int, start: int, length: int, vocab_size: int) -> np.ndarray:
    """Tokens of one of `files`. Raises RequestError, naming file and offset, for an id past the vocabulary."""
    tokens = files[file].tokens()[start : start + length]
    if length and int(tokens.max()) >= vocab_size:
        at = start + int(np.argmax(tokens >= vocab_size))
        raise RequestError(
            f"token {int(files[file].tokens()[at])} is past the {vocab_size} ids of data.tokenizer",
            where=f"{files[file].path}, at token {at:,}",
            instead="the data.tokenizer and integer type it was written with",
        )
    return tokens


@lru_cache(maxsize=1024)  # maps, not files: few enough for the system's limit, and pages that the system may drop
def _mapped(path: Path, dtype: np.dtype, header: int, count: int) -> np.ndarray:
    if not count:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r", offset=header, shape=(count,))


def _npy(path: Path) -> tuple[np.dtype, int, int]:
    """Item type, bytes of the header, and bytes that the file should have by it."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise RequestError(
            f"has a NumPy header that cannot be read ({error})", where=str(path), instead="a whole .npy file"
        ) from error
    if array.ndim != 1 or array.dtype.kind != "u" or not isinstance(array, np.memmap):
        raise RequestError(
            f"holds an array of {array.dtype} with shape {array.shape}",
            where=str(path),
            instead="a flat array of unsigned integers",
        )
    return array.dtype.newbyteorder("<"), array.offset, array.offset + array.nbytes
