"""Token files: headerless little-endian integers, as OLMo-core writes them, or NumPy's `.npy` with its header."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files import npy
from olmo_hydra.data.files.places import Place, local, peek, read_into, size_of, unreadable

TYPES = tuple(np.dtype(name) for name in ("uint8", "<u2", "<u4", "<u8"))


@dataclass(frozen=True)
class TokenFile:
    """A flat array of tokens in a file, opened when it is read. Picklable.

    `name` says what it is wherever it lies (its path in the mix); `label` is its domain; `header` bytes precede the
    first token; `mask`, where there is one, holds as many bools: whether a token may be a target.
    """

    path: Place
    name: str
    label: str
    n_tokens: int
    dtype: np.dtype
    header: int = 0
    mask: "TokenFile | None" = None

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return self.header + self.n_tokens * self.dtype.itemsize

    def tokens(self) -> np.ndarray:
        """All tokens, mapped; those of a file that stays remote are fetched.

        Raises:
          RequestError: The file is not there any more, or has another size.
        """
        path = local(self.path)
        if path is None or not self.n_tokens:  # nothing cannot be mapped
            return self.read(0, self.n_tokens)
        if (size := size_of(path)) != self.n_bytes:
            raise self._changed(size)
        try:
            return np.memmap(path, self.dtype, mode="r", offset=self.header, shape=(self.n_tokens,))
        except OSError as error:
            raise unreadable(self.path, error) from error

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop - 1`.

        Raises:
          RequestError: They cannot be read: names the file, and the token where it ends now.
        """
        tokens = np.empty(stop - start, self.dtype)
        if stop > start:
            offset = self.header + start * self.dtype.itemsize
            got = read_into(self.path, offset, tokens.view(np.uint8).data)
            if got < tokens.nbytes:
                raise self._changed(offset + got)
        return tokens

    def peek(self, count: int) -> np.ndarray:
        """The first `count` tokens, for which nothing is copied. Raises RequestError as `read` does."""
        raw = peek(self.path, self.header, count * self.dtype.itemsize)
        if len(raw) < count * self.dtype.itemsize:
            raise self._changed(self.header + len(raw))
        return np.frombuffer(raw, self.dtype)

    def _changed(self, size: int) -> RequestError:
        return RequestError(
            f"the file has changed since it was opened: it had {self.n_bytes:,} bytes, and has {size:,}",
            where=f"{self.path}, at token {max(size - self.header, 0) // self.dtype.itemsize:,}",
            instead="the file as it was, or a run of its own (run.tag=NAME)",
        )


def token_type(vocab_size: int) -> np.dtype:
    """The smallest unsigned integer that holds every id, which is what OLMo-core's files have."""
    return next(dtype for dtype in TYPES if vocab_size - 1 <= np.iinfo(dtype).max)


def open_file(
    place: Place, dtype: np.dtype, *, label: str, name: str | None = None, mask: Place | None = None
) -> TokenFile:
    """A token file, its size and its header looked at.

    Args:
      place: A local file, or one that `remote.find` found.
      dtype: Of the tokens; a `.npy` header says its own.
      label: Its domain.
      name: What to call it; its path if not given.
      mask: A file of as many bools.

    Raises:
      RequestError: The file is absent, is no whole number of tokens, has a header that is not of a flat array of
        unsigned integers, or its mask is not as long.
    """
    found = _look(place, dtype, "u")
    targets = None
    if mask is not None:
        of_mask = _look(mask, np.dtype(bool), "b")
        if of_mask.count != found.count:
            raise RequestError(
                f"the label mask has {of_mask.count:,} entries for {found.count:,} tokens",
                where=str(mask),
                instead=f"one bool a token of {place}",
            )
        targets = TokenFile(mask, str(mask), label, of_mask.count, of_mask.dtype, of_mask.offset)
    return TokenFile(place, name or str(place), label, found.count, found.dtype, found.offset, targets)


def tokens_of(files: Sequence[TokenFile], file: int, start: int, length: int, vocab_size: int) -> np.ndarray:
    """Tokens of one of `files`. Raises RequestError, naming file and offset, for an id past the vocabulary."""
    return known(files[file].read(start, start + length), files[file], start, vocab_size)


def known(tokens: np.ndarray, file: TokenFile, start: int, vocab_size: int) -> np.ndarray:
    """`tokens`, which `file` has from `start` on. Raises RequestError for an id past the vocabulary."""
    if len(tokens) and int(tokens.max()) >= vocab_size:
        at = int(np.argmax(tokens >= vocab_size))
        raise RequestError(
            f"token {int(tokens[at])} is past the {vocab_size:,} ids of data.tokenizer",
            where=f"{file.path}, at token {start + at:,}",
            instead="the data.tokenizer and integer type it was written with",
        )
    return tokens


def _look(place: Place, dtype: np.dtype, kind: str) -> npy.Header:
    """What a file holds, by its size and its first bytes: items of `dtype`, or a `.npy` of the same kind."""
    size = size_of(place)
    if peek(place, 0, len(npy.MAGIC)) == npy.MAGIC:
        found = npy.parse(peek(place, 0, npy.LONGEST), str(place))
        if found.dtype.kind != kind:
            wanted = {"u": "unsigned integers", "b": "bools"}[kind]
            raise RequestError(
                f"holds an array of {found.dtype}", where=str(place), instead=f"a flat array of {wanted}"
            )
        if size != (whole := found.offset + found.count * found.dtype.itemsize):
            raise RequestError(
                f"{size:,} bytes are not the {whole:,} of its NumPy header",
                where=f"{place}, at byte {min(size, whole)}",
                instead="a complete file",
            )
        return found
    if rest := size % dtype.itemsize:
        raise RequestError(
            f"{size:,} bytes are no whole number of {dtype.itemsize}-byte tokens",
            where=f"{place}, at byte {size - rest}",
            instead="a complete file, or the data.tokenizer it was written for",
        )
    return npy.Header(dtype.newbyteorder("<"), size // dtype.itemsize, 0)
