"""Smoothing and thinning against their definitions."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.report.content import Series
from olmo_hydra.report.curves import curve, smooth, thin


def test_a_curve_is_a_column_over_step():
    rows = [{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": None}]
    assert curve("loss", rows, "loss") == Series("loss", [1, 3], [2.0, None])


def test_smoothing_is_a_centred_mean_that_leaves_out_what_is_missing():
    assert smooth(Series("a", [1, 2, 3, 4], [1.0, 2.0, None, 6.0]), "b", 3).y == [1.5, 1.5, 4.0, 6.0]
    assert smooth(Series("a", [1, 2, 3], [None, None, None]), "b", 1).y == [None, None, None]


@given(st.integers(1, 3000), st.integers(0, 2**32 - 1))
def test_thinning_keeps_extremes_ends_gaps_and_order(length, seed):
    rng = random.Random(seed)
    y = [None if rng.random() < 0.001 else rng.gauss(0, 1) for _ in range(length)]
    whole = Series("a", list(range(length)), y)
    thinned = thin(whole, limit=200)
    assert len(thinned.x) <= 302
    assert all(
        y[step] == value or (y[step] is None and value is None)
        for step, value in zip(thinned.x, thinned.y, strict=True)
    )
    assert thinned.x == sorted(set(thinned.x)) and (thinned.x[0], thinned.x[-1]) == (0, length - 1)
    present, kept = ([value for value in values if value is not None] for values in (y, thinned.y))
    assert (None in y) == (None in thinned.y)
    if present:
        assert math.isclose(min(present), min(kept)) and math.isclose(max(present), max(kept))
