"""Tokenizers for tests."""

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.tokenizers.bpe import BPE, find
from tests.components import require_component

WORDS_OF_TRAINING = [
    "the theme of the thesis",
    "this is the other theme",
    "those themes are theirs, others' are not",
] * 40


def dolma2() -> BPE:
    """The real one; skips the test where its wheel is neither kept nor to be had."""
    try:
        return find("dolma2", None, print)
    except RequestError as error:
        require_component("the dolma2 tokenizer", False, str(error.instead))
        raise
