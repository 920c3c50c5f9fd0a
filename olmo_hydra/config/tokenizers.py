"""Names of tokenizers, and what is known of them without their files."""

import re
from dataclasses import dataclass

from olmo_hydra.config.errors import RequestError


@dataclass(frozen=True)
class Ids:
    """Size of a vocabulary, the id that ends a document and the one that pads."""

    vocab_size: int
    eos: int
    pad: int


KNOWN = {
    "bytes": Ids(257, eos=256, pad=256),  # padding is told by its place, and costs no row of the vocabulary
    "dolma2": Ids(100_278, eos=100_257, pad=100_277),  # Olmo 2's and 3's
}
WAYS = "bytes, dolma2, bpe:SIZE (trained on the text), or the path of a tokenizer.json"


def trained_size(tokenizer: str) -> int | None:
    """N of `bpe:N`, a byte-level BPE of N ids that is trained on the text it is for."""
    match = re.fullmatch(r"bpe:(\d{1,7})", tokenizer)
    return int(match[1]) if match else None


def vocab_size(tokenizer: str) -> int | None:
    """Ids of a tokenizer; None for a file, which nothing is known of before it is read."""
    return KNOWN[tokenizer].vocab_size if tokenizer in KNOWN else trained_size(tokenizer)


def check(tokenizer: str) -> None:
    """Raises RequestError for what names no tokenizer."""
    size = trained_size(tokenizer)
    if size is not None and not 258 <= size <= 2**20:
        problem, instead = "must have 258 (all bytes, an end and padding) to 1,048,576 ids", "data.tokenizer=bpe:8192"
    elif size is None and tokenizer not in KNOWN and not tokenizer.endswith(".json"):
        problem, instead = "is no tokenizer", WAYS
    else:
        return
    raise RequestError(problem, key="data.tokenizer", value=tokenizer, instead=instead)
