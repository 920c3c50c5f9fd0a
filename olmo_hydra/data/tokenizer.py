"""Tokenizers: text to token ids and back."""

from collections.abc import Sequence

import numpy as np

from olmo_hydra.config.data import Tokenizer
from olmo_hydra.config.errors import RequestError


class ByteTokenizer:
    """UTF-8 bytes are ids 0 to 255; 256 ends a document, so that no text can contain the end of one."""

    vocab_size = 257
    eos = 256
    pad = 256  # the end again: padding is told by its place, and costs no row of the vocabulary
    dtype = np.dtype("<u2")

    def encode(self, text: str) -> np.ndarray:
        """The uint16 ids of a text, without the end of the document. A lone surrogate has no UTF-8 and becomes `?`."""
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8).astype(self.dtype)

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no byte (the end of a document, padding of the vocabulary) show as nothing."""
        ids_T = np.asarray(ids)
        return ids_T[ids_T < self.eos].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def build(tokenizer: Tokenizer) -> ByteTokenizer:
    """The tokenizer that a config names."""
    if tokenizer is not Tokenizer.bytes:
        raise RequestError(
            "its files are not read yet", key="data.tokenizer", value=tokenizer, instead="data.tokenizer=bytes"
        )
    return ByteTokenizer()
