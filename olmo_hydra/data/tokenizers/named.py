"""A tokenizer that is known by its name: training on token files needs its ids, and only text needs its file."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.data.files.token_file import token_type
from olmo_hydra.data.report import Report
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer, build


class Named:
    """A tokenizer of `config.tokenizers.KNOWN`, whose file is read, or fetched, when the first text comes.

    Args:
      name: As in `data.tokenizer`.
      report: Receives a line before a download.
    """

    def __init__(self, name: str, report: Report):
        ids = KNOWN[name]
        self.vocab_size, self.eos, self.pad = ids.vocab_size, ids.eos, ids.pad
        self.dtype = token_type(ids.vocab_size)
        self._name, self._report = name, report

    @cached_property
    def _whole(self) -> Tokenizer:
        return build(self._name, report=self._report)

    @cached_property
    def specials(self) -> tuple[str, ...]:
        return self._whole.specials

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, of type `dtype`, without the end of the document."""
        return self._whole.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of some texts."""
        return self._whole.encode_batch(texts)

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids."""
        return self._whole.decode(ids)
