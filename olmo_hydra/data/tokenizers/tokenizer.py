"""Tokenizers: text to token ids and back."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from olmo_hydra.config import tokenizers
from olmo_hydra.data.report import Report


class Tokenizer(Protocol):
    """Ids below `vocab_size`; `eos` ends a document and `pad` fills up; token files hold items of `dtype`.

    `specials` are the texts of tokens that stand for no text. Where a document contains one, it is tokenized as any
    other text, so that no document can end another one.
    """

    vocab_size: int
    eos: int
    pad: int
    dtype: np.dtype

    @property
    def specials(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, of type `dtype`, without the end of the document. A lone surrogate becomes `?`."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of some texts, as `encode` gives them."""
        ...

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no text (the end of a document, padding of the vocabulary) show as nothing."""
        ...


class ByteTokenizer:
    """UTF-8 bytes are ids 0 to 255; 256 ends a document, so that no text can contain the end of one."""

    vocab_size, eos, pad = 257, 256, 256
    dtype = np.dtype("<u2")
    specials: tuple[str, ...] = ()

    def encode(self, text: str) -> np.ndarray:
        """The uint16 ids of a text, without the end of the document. A lone surrogate has no UTF-8 and becomes `?`."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8).astype(self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of some texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no byte (the end of a document, padding of the vocabulary) show as nothing."""
        ids_T = np.asarray(ids)
        return ids_T[ids_T < self.eos].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def build(name: str, folder: Path | None = None, report: Report | None = None) -> Tokenizer:
    """The tokenizer that a config names.

    Args:
      name: As in `data.tokenizer`.
      folder: Of a corpus whose own tokenizer this is: its `tokenizer.json` comes first.
      report: Receives a line before a download; without it, standard error does.

    Raises:
      RequestError: The name is none, its file cannot be read or fetched, or it is trained on a text (`bpe:SIZE`) and
        `folder` is not of a corpus.
    """
    tokenizers.check(name)
    if name == "bytes":
        return ByteTokenizer()
    from olmo_hydra.data.tokenizers import bpe  # with a library that takes a while to import

    return bpe.find(name, folder, report or (lambda line: print(line, file=sys.stderr)))
