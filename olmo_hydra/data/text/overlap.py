"""Which word sequences of held-out text occur in training text: shared 13-grams, the size of GPT-3's check.

A word is a run of letters and digits, in lower case, so that case, punctuation and layout hide no copy. For the size
see Brown et al. 2020, arXiv 2005.14165, appendix C.

    grams = Grams.of(text for name, text in heldout)                    # once
    places = [grams.found(texts) for texts in pieces_of_training]       # in any process and order
    overlap_of(heldout, grams, {"web": grams.mask(places)})

Grams are compared by 64-bit hashes: T distinct ones in training and H in held-out text share about T * H / 2^64 by
chance, which is 7e-6 of one gram for T = 25 million and H = 5 million.

Shapes: C characters, W words, G grams.
"""

import functools
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

SIZE = 13  # words a gram; `_grams` adds it up as 8 + 4 + 1
PIECE = 1 << 17  # characters hashed at once: their arrays stay in the processor's cache. A longer word is cut
FILTER_BITS = 16  # at least, for each gram of a set: at most one in 60 of all others passes its filter
EXAMPLES = 5
CODES = 0x110000
LETTERS_END = 0x32000  # no code point from here on is a letter or digit
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
WORD = re.compile(r"[^\W_]+")


class Grams:
    """A set of 13-grams to look for in other text.

    Args:
      hashes_G: uint64; kept sorted and without repeats, as `hashes_G`.
    """

    def __init__(self, hashes_G: np.ndarray):
        self.hashes_G = _distinct(hashes_G)
        # A Bloom filter of two bits a gram, the first and the last of its hash, spares most searches.
        n_bits = max(3, (FILTER_BITS * len(self.hashes_G)).bit_length())
        self._shift, self._mask = np.uint64(64 - n_bits), np.uint64((1 << n_bits) - 1)
        bits = np.zeros(1 << n_bits, bool)
        bits[self.hashes_G >> self._shift] = True
        bits[self.hashes_G & self._mask] = True
        self._filter = np.packbits(bits, bitorder="little")

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Grams":
        """All 13-grams of some texts. A text of fewer words has none."""
        return cls(np.concatenate([np.empty(0, np.uint64), *map(_grams, _batches(texts))]))

    def found(self, texts: Iterable[str]) -> np.ndarray:
        """Sorted places in `hashes_G` of the grams that some texts have. Holds one text at a time, or a few short."""
        found_G = np.zeros(len(self.hashes_G), bool)
        for hashes_G in map(_grams, _batches(texts)):
            candidates_G = hashes_G[self._has_bit(hashes_G >> self._shift)]
            candidates_G = candidates_G[self._has_bit(candidates_G & self._mask)]
            place_G = np.minimum(np.searchsorted(self.hashes_G, candidates_G), len(self.hashes_G) - 1)
            found_G[place_G[self.hashes_G[place_G] == candidates_G]] = True
        return np.flatnonzero(found_G)

    def mask(self, places: Iterable[np.ndarray]) -> np.ndarray:
        """One mask over `hashes_G` of what `found` gave for several pieces of text."""
        mask_G = np.zeros(len(self.hashes_G), bool)
        for place in places:
            mask_G[place] = True
        return mask_G

    def _has_bit(self, bit_G: np.ndarray) -> np.ndarray:
        return (self._filter[bit_G >> np.uint64(3)] >> (bit_G & np.uint64(7)).astype(np.uint8) & 1).astype(bool)


def overlap_of(documents: Iterable[tuple[str, str]], grams: Grams, found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """How much of a held-out domain occurs in training text, as JSON values.

    Args:
      documents: Name and text of each of its documents.
      grams: With all grams of those texts.
      found: For each training domain, the mask over `grams` of those that its text has.

    Returns:
      `documents`, `grams`: how many there are (a gram that occurs twice counts twice). `documents_shared`,
      `grams_shared`: of these, the grams that training text has, and the documents with at least one. `by_domain`: the
      last two for each training domain that has any. `examples`: the documents with most shared grams, how many, and
      the 13 words of the first.
    """
    masks = {domain: mask_G for domain, mask_G in found.items() if mask_G.any()}
    masks[""] = functools.reduce(np.logical_or, masks.values(), np.zeros(len(grams.hashes_G), bool))
    n_documents = n_grams = 0
    shared = {domain: {"documents_shared": 0, "grams_shared": 0} for domain in masks}
    examples: list[tuple[int, int, str, str]] = []
    for n_documents, (name, text) in enumerate(documents, 1):
        place_G = np.searchsorted(grams.hashes_G, _grams([text]))
        n_grams += len(place_G)
        for domain, mask_G in masks.items():
            n_shared = int(mask_G[place_G].sum())
            shared[domain]["documents_shared"] += n_shared > 0
            shared[domain]["grams_shared"] += n_shared
        if n_shared:
            words = [match.group().lower() for match in WORD.finditer(text)]
            first = int(mask_G[place_G].argmax())
            heapq.heappush(examples, (n_shared, -n_documents, name, " ".join(words[first : first + SIZE])))
            if len(examples) > EXAMPLES:
                heapq.heappop(examples)
    return {
        "documents": n_documents,
        "grams": n_grams,
        **shared.pop(""),
        "by_domain": {domain: counts for domain, counts in shared.items() if counts["grams_shared"]},
        "examples": [
            {"document": name, "grams_shared": n_shared, "words": words}
            for n_shared, _, name, words in sorted(examples, reverse=True)
        ],
    }


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    n_characters = 0
    for text in texts:
        batch.append(text)
        n_characters += len(text)
        if n_characters >= PIECE:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch


def _grams(texts: list[str]) -> np.ndarray:
    """Hashes of the 13-grams of some texts, in order; none spans two of them."""
    joined = "\n".join(texts)
    hashes, starts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for first, piece in _pieces(joined):
        hash_W, start_W = _words(piece)
        hashes.append(hash_W)
        starts.append(start_W + first)
    h1_W = np.concatenate(hashes)
    if len(h1_W) < SIZE:
        return np.empty(0, np.uint64)
    q, q2, q4 = (np.uint64(pow(MULTIPLIER, n, 1 << 64)) for n in (1, 2, 4))
    h2_W = h1_W[:-1] * q + h1_W[1:]
    h4_W = h2_W[:-2] * q2 + h2_W[2:]
    h8_W = h4_W[:-4] * q4 + h4_W[4:]
    h12_W = h8_W[:-4] * q4 + h4_W[8:]
    h13_G = h12_W[:-1] * q + h1_W[12:]
    whole_G = np.ones(len(h13_G), bool)
    ends = np.cumsum([len(text) + 1 for text in texts[:-1]], dtype=np.int64)
    for first_word in np.searchsorted(np.concatenate(starts), ends):
        whole_G[max(0, first_word - SIZE + 1) : first_word] = False
    return _mixed(h13_G[whole_G])


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """The text in pieces of at most `PIECE` characters, cut between words, each with its first place."""
    first = 0
    while first < len(text):
        end = min(first + PIECE, len(text))
        while first < end < len(text) and text[end - 1].isalnum():
            end -= 1
        if end == first:
            end = first + PIECE  # one word
        yield first, text[first:end]
        first = end


def _words(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Hash and first character of each word: the polynomial of its characters, by prefixes, modulo 2^64."""
    if text.isascii():
        code_C = np.frombuffer(text.encode("ascii"), np.uint8)
    else:
        code_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    value_C = _values()[code_C]
    in_word_C = value_C != 0
    start_W = np.flatnonzero(in_word_C[1:] > in_word_C[:-1]) + 1
    if in_word_C[:1].any():
        start_W = np.concatenate(([0], start_W))
    if not len(start_W):
        return np.empty(0, np.uint64), start_W
    power_C, inverse_C = _powers()
    value_C *= power_C[: len(value_C)]
    # What stands between words has the value 0, so that a sum up to the next word is the word's own.
    return _mixed(np.add.reduceat(value_C, start_W) * inverse_C[start_W]), start_W


@functools.cache
def _values() -> np.ndarray:
    """A number for each letter and digit, the same for both cases; 0 for all other characters."""
    value = np.zeros(CODES, np.uint64)
    letters = [code for code in range(LETTERS_END) if chr(code).isalnum()]
    value[letters] = _mixed(np.array([ord(chr(code).lower()[0]) for code in letters], np.uint64))
    return value


@functools.cache
def _powers() -> tuple[np.ndarray, np.ndarray]:
    """The first `PIECE` powers of the multiplier, and their inverses, modulo 2^64."""
    both = (MULTIPLIER, pow(MULTIPLIER, -1, 1 << 64))
    power, inverse = (np.multiply.accumulate(np.full(PIECE, base, np.uint64)) for base in both)
    return power, inverse


def _distinct(x: np.ndarray) -> np.ndarray:
    x = np.sort(x)  # np.unique of NumPy 2.4 hashes first, and takes 15 times as long
    return x[np.concatenate((np.ones(len(x[:1]), bool), x[1:] != x[:-1]))]


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Vigna): every bit of the result depends on every bit of the number."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
