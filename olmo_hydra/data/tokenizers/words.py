"""Encoding by words that were seen before: several times as fast as the library, and the same ids.

A tokenizer with dolma2's splitting encodes each word alone, so that the ids of a text are those of its words. Words are
found here with Python's `re`, each is encoded by the library once, and then looked up. What counts as a letter, a digit
or white space is asked of the library's regular expressions, so that no version of Unicode makes a difference.
"""

import functools
import json
import re
from collections.abc import Iterator, Sequence

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split

# Of tiktoken's cl100k_base, and so of dolma2.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Python's classes search characters past this one range by range: texts with them are left to the library.
LAST = 0xFFFF
ASTRAL = re.compile("[\U00010000-\U0010ffff]")
KEPT = 1 << 20  # words remembered, of about 150 bytes each
SLICE = 1 << 20  # characters cut into words at once
# No word reaches past the end of a line that is followed by a letter, nor does what precedes it depend on what follows.
LINE = re.compile(r"\n(?=[A-Za-z])")


class Words:
    """The words of one tokenizer and their ids.

    Args:
      library: Must pass `can_be_used`.
      dtype: Of the ids.
    """

    def __init__(self, library: Tokenizer, dtype: np.dtype):
        self._library, self._dtype = library, dtype
        self._find = _pattern().findall
        added = library.get_added_tokens_decoder().values()
        self._added = [token.content for token in added if not token.special]
        self._ids: dict[str, bytes] = {}

    @staticmethod
    def can_be_used(library: Tokenizer) -> bool:
        """Whether a tokenizer splits like dolma2, and does nothing else to a text before it encodes the words."""
        if library.normalizer is not None or not isinstance(library.model, BPE) or library.model.dropout:
            return False
        steps = (
            json.loads(library.pre_tokenizer.__getstate__()).get("pretokenizers", []) if library.pre_tokenizer else []
        )
        if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
            return False
        split, to_bytes = steps
        isolates = (split["behavior"], split["invert"]) in (("Isolated", False), ("Removed", True))
        plain = not to_bytes["add_prefix_space"] and not to_bytes["use_regex"]
        return isolates and plain and split["pattern"] == {"Regex": PATTERN}

    def knows_all_of(self, text: str) -> bool:
        """Whether a text can be encoded by its words: it has no character past `LAST` and no token that spans words."""
        return ASTRAL.search(text) is None and not any(token in text for token in self._added)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, each of which `knows_all_of` has passed."""
        return [np.frombuffer(b"".join(map(self._slice, _slices(text))), self._dtype) for text in texts]

    def _slice(self, text: str) -> bytes:
        words = self._find(text)
        new = list(set(words).difference(self._ids))
        if new:
            if len(self._ids) + len(new) > KEPT:
                self._ids.clear()
                new = list(set(words))
            encodings = self._library.encode_batch_fast(new, add_special_tokens=False)
            for word, encoding in zip(new, encodings, strict=True):
                self._ids[word] = np.array(encoding.ids, self._dtype).tobytes()
        return b"".join(map(self._ids.__getitem__, words))


def _slices(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > SLICE:
        end = LINE.search(text, start + SLICE)
        if end is None:
            break
        yield text[start : end.end()]
        start = end.end()
    yield text[start:]


@functools.cache
def _pattern() -> re.Pattern[str]:
    """The splitting pattern in the words of Python's `re`, which knows no classes of Unicode."""
    letters, digits, spaces = (_ranges(name) for name in (r"\p{L}", r"\p{N}", r"\s"))
    own = PATTERN.replace(r"[^\r\n\p{L}\p{N}]", rf"[^\r\n{letters}{digits}]")
    own = own.replace(r"[^\s\p{L}\p{N}]", f"[^{spaces}{letters}{digits}]")
    own = own.replace(r"\p{L}", f"[{letters}]").replace(r"\p{N}", f"[{digits}]")
    return re.compile(own.replace(r"\S", f"[^{spaces}]").replace(r"\s", f"[{spaces}]"))


def _ranges(name: str) -> str:
    """The characters of a class, up to `LAST`, as ranges inside the brackets of a pattern."""
    characters = "".join(map(chr, [*range(0xD800), *range(0xE000, LAST + 1)]))
    runs = Split(Regex(f"{name}+"), behavior="removed", invert=True).pre_tokenize_str(characters)
    # One run of the string may pass the gap of the surrogates, which no text has.
    return "".join(f"{re.escape(run[0])}-{re.escape(run[-1])}" for run, _ in runs)
