"""Counting models against counts made by hand and against plain Python."""

from collections import Counter, defaultdict

import numpy as np

from olmo_hydra.eval.baselines import trigram, unigram
from olmo_hydra.eval.heldout import IGNORED

VOCAB = 5


def test_unigram_by_hand() -> None:
    score = unigram([np.array([0, 0, 1]), np.array([2])], 3)  # with one added: 3, 2, 2 of 7
    nats = score(np.zeros((1, 3), int), np.array([[0, 1, IGNORED]]))
    np.testing.assert_allclose(nats, [-np.log(3 / 7) - np.log(2 / 7)])


def witten_bell(text: list[int]) -> dict[tuple[int, int, int], float]:
    counts = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for n in (1, 2, 3)]
    total = len(text) + VOCAB
    follows: dict[tuple, Counter] = defaultdict(Counter)
    for grams in counts[1:]:
        for gram, count in grams.items():
            follows[gram[:-1]][gram[-1]] += count

    def probability(context: tuple, c: int) -> float:
        if not context:
            return (counts[0][(c,)] + 1) / total
        shorter = probability(context[1:], c)
        seen = follows[context]
        if not seen:
            return shorter
        return (seen[c] + len(seen) * shorter) / (sum(seen.values()) + len(seen))

    symbols = range(VOCAB)
    return {(a, b, c): probability((a, b), c) for a in symbols for b in symbols for c in symbols}


def test_trigram_is_witten_bell(monkeypatch) -> None:
    monkeypatch.setattr("olmo_hydra.eval.baselines.CHUNK", 7)  # counts must not depend on where the text is cut
    text = np.random.default_rng(0).integers(0, VOCAB, 60) ** 2 % VOCAB
    score = trigram([text.astype(np.uint16)], VOCAB)
    expected = witten_bell(text.tolist())
    for (a, b, c), probability in expected.items():
        nats = score(np.array([[a, b]]), np.array([[IGNORED, c]]))
        np.testing.assert_allclose(nats, -np.log(probability), rtol=1e-12, err_msg=f"{a} {b} {c}")
    for a in range(VOCAB):
        for b in range(VOCAB):
            np.testing.assert_allclose(sum(expected[a, b, c] for c in range(VOCAB)), 1, rtol=1e-12)
