"""What counting can do: unigram and trigram models of bytes, fitted on the training text, scored as the model is."""

from collections.abc import Iterable

import numpy as np

from olmo_hydra.data.loader import IGNORED
from olmo_hydra.eval.heldout import Score

CHUNK = 1 << 22


def unigram(files: Iterable[np.ndarray], vocab: int) -> Score:
    """Token frequencies with one added to every count.

    Args:
      files: Token arrays of the training text.
      vocab: Number of token ids.
    """
    counts = sum((np.bincount(tokens, minlength=vocab) for tokens in files), np.ones(vocab))
    nats = -np.log(counts / counts.sum())

    def score(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        return np.where(labels_BT == IGNORED, 0.0, nats[labels_BT.clip(0)]).sum(axis=1)

    return score


def trigram(files: Iterable[np.ndarray], vocab: int) -> Score:
    """A trigram model, interpolated with its bigram and unigram by Witten-Bell (1991, method C).

    `P(c|ab) = (count(abc) + types(ab) P(c|b)) / (count(ab) + types(ab))`, and so on down to the unigram: a context seen
    with many different continuations leaves more to the shorter one. Where a row gives fewer than two tokens of
    context, the first is taken to be token 0, a context that is as good as unseen.
    """
    by_1, by_2, by_3 = (np.zeros(vocab**n, np.int32) for n in (1, 2, 3))
    for tokens in files:
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK + 2].astype(np.int64)
            by_1 += np.bincount(part[:CHUNK], minlength=vocab).astype(np.int32)
            pairs = part[:-1] * vocab + part[1:]
            by_2 += np.bincount(pairs[:CHUNK], minlength=vocab**2).astype(np.int32)
            np.add.at(by_3, pairs[:-1] * vocab + part[2:], 1)
    types_1 = (by_2.reshape(vocab, vocab) > 0).sum(axis=1)
    types_2 = (by_3.reshape(vocab**2, vocab) > 0).sum(axis=1)
    context_1 = by_2.reshape(vocab, vocab).sum(axis=1)
    context_2 = by_3.reshape(vocab**2, vocab).sum(axis=1)
    p_1 = (by_1 + 1) / (by_1 + 1).sum()

    def mixed(count: np.ndarray, context: np.ndarray, types: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        total = context + types
        return np.where(total > 0, (count + types * shorter) / np.maximum(total, 1), shorter)

    def score(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        before = np.pad(tokens_BT, ((0, 0), (1, 0)))[:, :-1].astype(np.int64)
        last, label = tokens_BT.astype(np.int64), labels_BT.clip(0)
        pair = before * vocab + last
        p_2 = mixed(by_2[last * vocab + label], context_1[last], types_1[last], p_1[label])
        p_3 = mixed(by_3[pair * vocab + label], context_2[pair], types_2[pair], p_2)
        return np.where(labels_BT == IGNORED, 0.0, -np.log(p_3)).sum(axis=1)

    return score
