"""Tokenizers: text to token ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from olmo_hydra.config import tokenizers
from olmo_hydra.config.errors import RequestError


class Tokenizer(Protocol):
    """Ids below `vocab_size`; `eos` ends a document and `pad` fills up; token files hold items of `dtype`."""

    vocab_size: int
    eos: int
    pad: int
    dtype: np.dtype

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, of type `dtype`, without the end of the document. No text can give `eos`."""
        ...

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no text (the end of a document, padding of the vocabulary) show as nothing."""
        ...


class ByteTokenizer:
    """UTF-8 bytes are ids 0 to 255; 256 ends a document, so that no text can contain the end of one."""

    vocab_size, eos, pad = 257, 256, 256
    dtype = np.dtype("<u2")

    def encode(self, text: str) -> np.ndarray:
        """The uint16 ids of a text, without the end of the document. A lone surrogate has no UTF-8 and becomes `?`."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8).astype(self.dtype)

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no byte (the end of a document, padding of the vocabulary) show as nothing."""
        ids_T = np.asarray(ids)
        return ids_T[ids_T < self.eos].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def build(name: str, folder: Path | None = None) -> Tokenizer:
    """The tokenizer that a config names.

    Args:
      name: As in `data.tokenizer`.
      folder: Of a corpus whose own tokenizer this is: its `tokenizer.json` comes first.
    """
    if name in tokenizers.KNOWN and name == "bytes":
        return ByteTokenizer()
    raise RequestError("its files are not read yet", key="data.tokenizer", value=name, instead="data.tokenizer=bytes")
