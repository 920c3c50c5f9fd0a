"""Goldens: OLMo-core 3.0.0's filter, measured by running it. `by_the_rule` is its algorithm, row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.data.instances.repetition import repeats

rng = np.random.default_rng(0)
TEXT = rng.integers(1000, 100_000, 8192)


def inside(pattern, times, length=400):
    """Random tokens with a pattern in the middle."""
    tokens = TEXT[:length].copy()
    tokens[100 : 100 + len(pattern) * times] = pattern * times
    return tokens


def at_both_ends():
    tokens = TEXT.copy()
    tokens[:31] = tokens[-1] = 7
    return tokens


GOLDENS = [
    ([5] * 32, True),
    ([5] * 31, False),
    ([1, 2] * 32, True),
    (list(range(13)) * 32, True),
    (list(range(14)) * 32, False),
    ([8, 9] + [5] * 32 + [8, 9], True),
    ([8, 9] + [1, 2, 3] * 31 + [1, 2, 60], False),
    (at_both_ends(), False),
    (TEXT, False),
    (inside([1, 2, 3], 32), True),
    (inside([1, 2, 3], 31), False),
    ([], False),
    ([5, 5], False),
]


@pytest.mark.parametrize(("tokens", "caught"), GOLDENS)
def test_olmo_core_verdicts(tokens, caught):
    tokens_BT = np.array(tokens, np.int32)[None]
    assert repeats(tokens_BT, np.array([len(tokens)])).tolist() == [caught]


def by_the_rule(tokens, max_period, min_period, max_count):
    n = len(tokens)
    for p in range(min_period, min(max_period, n // 3) + 1):
        rows = np.full((n // p + 1) * p, -1)
        rows[:n] = tokens
        rows = rows.reshape(-1, p)
        equal = np.vstack([np.zeros(p, bool), rows[1:] == rows[:-1]])
        whole = equal.all(axis=1)
        for a in np.flatnonzero(whole & ~np.roll(whole, 1)):
            b = a + int(np.argmin(whole[a:])) - 1
            before, after = equal[a - 1], equal[b + 1]
            start = (a - 1) * p - (p if before.all() else int(np.argmin(before[::-1])))
            end = (b + 1) * p + (p if after.all() else int(np.argmin(after)))
            times = (end - start) // p
            if times > 2 and times >= max_count:
                return True
    return False


@st.composite
def near_the_threshold(draw):
    """A text of pieces that repeat about as often as is allowed, among tokens that often equal each other."""
    max_count = draw(st.integers(2, 9))
    alphabet = draw(st.integers(1, 4))
    pieces = []
    for _ in range(draw(st.integers(0, 3))):
        pattern = draw(st.lists(st.integers(0, alphabet), min_size=1, max_size=6))
        times = draw(st.integers(max(1, max_count - 2), max_count + 1))
        pieces += draw(st.lists(st.integers(0, alphabet), max_size=4))
        pieces += (pattern * times)[: len(pattern) * times - draw(st.integers(0, 2))]
    pieces += draw(st.lists(st.integers(0, alphabet), max_size=4))
    return pieces, max_count


@settings(max_examples=600, deadline=None)
@given(
    texts=st.lists(near_the_threshold(), min_size=1, max_size=4),
    padding=st.integers(0, 40),
    periods=st.tuples(st.integers(1, 3), st.integers(1, 6)),
)
def test_verdicts_are_the_rules(texts, padding, periods):
    max_count = texts[0][1]
    min_period, max_period = periods
    lengths_B = np.array([len(text) for text, _ in texts])
    tokens_BT = np.zeros((len(texts), max(lengths_B) + padding), np.int32)  # padded with a token that occurs
    for b, (text, _) in enumerate(texts):
        tokens_BT[b, : len(text)] = text
    settings_ = {"max_period": max_period, "min_period": min_period, "max_count": max_count}
    assert repeats(tokens_BT, lengths_B, **settings_).tolist() == [by_the_rule(text, **settings_) for text, _ in texts]


def test_long_texts_near_the_threshold():
    texts = []
    for _ in range(1000):
        tokens = rng.integers(0, rng.choice([3, 100_000]), rng.integers(40, 700))
        period = int(rng.integers(1, 16))
        length = int(rng.integers(29 * period, 34 * period))
        at = int(rng.integers(0, len(tokens)))
        repeated = np.resize(rng.integers(0, 100_000, period), length)
        texts.append(np.concatenate([tokens[:at], repeated, tokens[at:]]))
    lengths_B = np.array([len(text) for text in texts])
    tokens_BT = np.zeros((len(texts), max(lengths_B)), np.int32)
    for b, text in enumerate(texts):
        tokens_BT[b, : len(text)] = text
    caught = repeats(tokens_BT, lengths_B)
    assert caught.tolist() == [by_the_rule(text, 13, 1, 32) for text in texts]
    assert 200 < caught.sum() < 800
