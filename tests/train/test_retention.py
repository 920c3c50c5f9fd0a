"""What stays of the checkpoints, whatever the cadence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.tracking.checkpoints import Kind
from olmo_hydra.train.retention import superfluous
from tests.train.tiny import saving

L, P, E = Kind.landmark, Kind.permanent, Kind.ephemeral


@pytest.mark.parametrize(
    ("kinds", "keep", "before", "gone"),
    [
        ({}, None, None, []),
        ({1: E}, 1, None, []),
        ({1: P, 2: P, 3: P}, None, None, []),
        ({1: P, 2: P, 3: P}, 2, None, [1]),
        ({1: P, 2: E, 3: E}, None, None, [2]),
        ({1: P, 2: E, 3: P}, 1, None, [1, 2]),
        ({1: L, 2: P, 3: P, 4: L, 5: P, 6: E}, 2, None, [2]),
        ({1: P, 2: P, 3: E}, 1, None, [1]),
        ({2: P, 4: E, 6: E, 8: E}, 1, 7, [4]),
        ({2: P, 4: E, 6: E, 8: E}, 1, 6, [6]),
        ({2: P, 4: P, 6: P}, 1, 2, [2, 4]),
    ],
)
def test_known(kinds: dict[int, Kind], keep: int | None, before: int | None, gone: list[int]) -> None:
    assert superfluous(kinds, keep, [], before) == gone


steps = st.integers(1, 60)


@given(
    every=st.integers(2, 20),
    between=st.none() | st.integers(1, 19),
    landmarks=st.lists(steps),
    keep=st.none() | st.integers(1, 4),
    end=steps,
    signals=st.sets(steps),
    trouble=st.none() | steps,
)
def test_what_remains_is_what_the_rule_says(every, between, landmarks, keep, end, signals, trouble) -> None:
    """A run to update `end`, stopped at `signals`, with an unending streak of skipped updates from `trouble`."""
    between = between and between % (every - 1) + 1
    config = saving(every=every, ephemeral_every=between, fixed_steps=landmarks, keep=keep)
    config.check()
    kinds: dict[int, Kind] = {}
    saved = []
    for step in range(1, end + 1):
        if not (config.due(step) or step in signals or step == end):
            continue
        permanent = config.permanent(step) or step == end
        kinds[step] = L if step in landmarks else P if permanent else E
        saved.append((step, kinds[step]))
        before = trouble if trouble is not None and trouble <= step else None
        for gone in superfluous(kinds, keep, landmarks, before):
            del kinds[gone]
    lasting = [step for step, kind in saved if kind is P]
    expected = {step for step, kind in saved if kind is L} | {end} | set(lasting if keep is None else lasting[-keep:])
    assert expected <= set(kinds)
    if trouble is None or trouble > end:
        assert set(kinds) == expected
    else:
        earlier = [step for step, _ in saved if step < trouble]
        assert set(kinds) == expected | set(earlier[-1:])


def test_a_landmark_that_the_config_names_later_stays() -> None:
    assert superfluous({2: P, 4: E, 6: P}, 1, [2, 4], None) == []
