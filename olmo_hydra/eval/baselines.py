"""What counting can do: unigram and trigram models of tokens, fitted on training text, scored as the model is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmo_hydra.data.files.token_file import TokenFile, known
from olmo_hydra.data.loader import IGNORED
from olmo_hydra.eval.heldout import Score

COUNTED = 1 << 25  # tokens at most: 1 GB while they are counted, and some seconds
FILES = 128  # of a longer list, so many are read, each behind a URL with one request


def text_to_count(files: Sequence[TokenFile], vocab: int) -> list[np.ndarray]:
    """Training text for the counts: all of it, or about `COUNTED` tokens from the beginnings of files all through it.

    Of a remote file nothing but those is fetched. Every file gives the same share of its tokens.

    Raises:
      RequestError: A file has changed since it was opened, or holds a token past the `vocab` ids.
    """
    if sum(file.n_tokens for file in files) > COUNTED:
        files = files[:: -(-len(files) // FILES)]
    total = max(sum(file.n_tokens for file in files), 1)
    texts = []
    for file in files:
        count = file.n_tokens if total <= COUNTED else file.n_tokens * COUNTED // total
        texts.append(known(file.peek(count), file, 0, vocab).astype(np.int64))
    return texts


def unigram(texts: Sequence[np.ndarray], vocab: int) -> Score:
    """Token frequencies with one added to every count.

    Args:
      texts: Token arrays of training text.
      vocab: Number of token ids.
    """
    counts = sum((np.bincount(tokens, minlength=vocab) for tokens in texts), np.ones(vocab))
    nats = -np.log(counts / counts.sum())

    def score(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        return np.where(labels_BT == IGNORED, 0.0, nats[labels_BT.clip(0)]).sum(axis=1)

    return score


def trigram(texts: Sequence[np.ndarray], vocab: int) -> Score:
    """A trigram model, interpolated with its bigram and unigram by Witten-Bell (1991, method C).

    `P(c|ab) = (count(abc) + types(ab) P(c|b)) / (count(ab) + types(ab))`, and so on down to the unigram: a context seen
    with many different continuations leaves more to the shorter one. Where a row gives fewer than two tokens of
    context, the first is taken to be token 0, a context that is as good as unseen.
    """
    p_1 = sum((np.bincount(tokens, minlength=vocab) for tokens in texts), np.ones(vocab))
    p_1 /= p_1.sum()
    grams_2, grams_3 = (Counts.of_grams(texts, vocab, n) for n in (2, 3))
    contexts_1, contexts_2 = grams_2.contexts(vocab), grams_3.contexts(vocab)

    def mixed(grams: Counts, contexts: Counts, context: np.ndarray, label: np.ndarray, shorter: np.ndarray):
        (count,), (seen, types) = grams[context * vocab + label], contexts[context]
        total = seen + types
        return np.where(total > 0, (count + types * shorter) / np.maximum(total, 1), shorter)

    def score(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        counts = labels_BT != IGNORED
        last_BT = tokens_BT.astype(np.int64)
        pair_BT = np.pad(last_BT, ((0, 0), (1, 0)))[:, :-1] * vocab + last_BT
        last_N, pair_N, label_N = last_BT[counts], pair_BT[counts], labels_BT[counts].astype(np.int64)
        p_2 = mixed(grams_2, contexts_1, last_N, label_N, p_1[label_N])
        nats_BT = np.zeros(labels_BT.shape)
        nats_BT[counts] = -np.log(mixed(grams_3, contexts_2, pair_N, label_N, p_2))
        return nats_BT.sum(axis=1)

    return score


@dataclass(frozen=True)
class Counts:
    """Numbers by key, without room for the keys that never occur: V^3 of them would not fit.

    Attributes:
      keys_N: Sorted; a gram of tokens a, b, c has the key (a V + b) V + c.
      values_CN: One row a kind of number.
    """

    keys_N: np.ndarray
    values_CN: np.ndarray

    @classmethod
    def of_grams(cls, texts: Sequence[np.ndarray], vocab: int, n: int) -> "Counts":
        """How often each sequence of `n` tokens occurs inside a text."""
        lengths = [max(len(tokens) - n + 1, 0) for tokens in texts]
        all_keys, filled = np.zeros(sum(lengths), np.int64), 0
        for tokens, length in zip(texts, lengths, strict=True):
            part = all_keys[filled : filled + length]
            for i in range(n):
                part *= vocab
                part += tokens[i : i + length]
            filled += length
        if vocab**n <= COUNTED:  # a bin for each that could occur: several times faster than to sort
            bins = np.bincount(all_keys)
            keys_N = np.flatnonzero(bins)
            return cls(keys_N, bins[keys_N][None])
        all_keys.sort()
        starts_N = beginnings(all_keys)
        return cls(all_keys[starts_N], np.diff(starts_N, append=len(all_keys))[None])

    def contexts(self, vocab: int) -> "Counts":
        """Of each context, a gram without its last token: how often it goes on, and with how many different tokens."""
        contexts_N = self.keys_N // vocab
        starts_M = beginnings(contexts_N)
        if not len(starts_M):
            return Counts(contexts_N, np.zeros((2, 0), np.int64))
        seen_M = np.add.reduceat(self.values_CN[0], starts_M)
        return Counts(contexts_N[starts_M], np.stack([seen_M, np.diff(starts_M, append=len(contexts_N))]))

    def __getitem__(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of `keys`, a row a kind; 0 where a key never occurred."""
        at, order = np.empty(len(keys), np.int64), np.argsort(keys)
        at[order] = np.searchsorted(self.keys_N, keys[order])  # neighbours find each other's way in the cache
        found = np.zeros(len(keys), bool)
        inside = at < len(self.keys_N)
        found[inside] = self.keys_N[at[inside]] == keys[inside]
        values = np.zeros((len(self.values_CN), len(keys)), np.int64)
        values[:, found] = self.values_CN[:, at[found]]
        return values


def beginnings(sorted_N: np.ndarray) -> np.ndarray:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.diff(sorted_N, prepend=sorted_N[0] - 1)) if len(sorted_N) else np.zeros(0, np.int64)
