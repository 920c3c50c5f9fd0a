"""Goldens: OLMo-core 3.0.0's packer, measured by running it. Its sort is not stable, so that they have no ties."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.data.instances import packing
from olmo_hydra.data.instances.packing import documents, pack

GOLDENS = [
    (16, [5, 11, 7, 2, 6, 4, 9, 3], [[11, 5], [9, 7], [6, 4, 3, 2]]),
    (8, [8, 5, 3, 2, 6, 1], [[8], [6, 2], [5, 3], [1]]),
    (16, [12, 9, 7, 6, 4, 3, 2, 1], [[12, 4], [9, 7], [6, 3, 2, 1]]),
    (
        128,
        [37 * i % 64 for i in range(1, 64)],
        [[63, 62, 3], [61, 60, 7], [59, 58, 11], [57, 56, 15], [55, 54, 19], [53, 52, 23], [51, 50, 27], [49, 48, 31],
         [47, 46, 35], [45, 44, 39], [43, 42, 41, 2], [40, 38, 37, 13], [36, 34, 33, 25], [32, 30, 29, 28, 9],
         [26, 24, 22, 21, 20, 14, 1], [18, 17, 16, 12, 10, 8, 6, 5, 4]],
    ),
]  # fmt: skip


def packed(lengths, seq_len):
    """The numbers of the documents of each instance."""
    order, bounds = pack(np.asarray(lengths, np.int64), seq_len)
    return [order[start:end].tolist() for start, end in pairwise(bounds)]


def by_the_rule(lengths, seq_len):
    """The same, looking through all instances for each document."""
    instances, rooms, since = [], [], []  # `since`: when an instance last became as full as it is
    for time, document in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        fits = [i for i, room in enumerate(rooms) if room >= lengths[document]]
        if not fits:
            fits = [len(instances)]
            instances.append([]), rooms.append(seq_len), since.append(time)
        best = min(fits, key=lambda i: (rooms[i], since[i]))
        instances[best].append(document)
        rooms[best] -= lengths[document]
        since[best] = time
    return instances


@pytest.mark.parametrize(("seq_len", "lengths", "instances"), GOLDENS)
def test_olmo_core_packing(seq_len, lengths, instances):
    assert [[lengths[i] for i in instance] for instance in packed(lengths, seq_len)] == instances


@given(data=st.data(), seq_len=st.integers(1, 24))
def test_packing_is_the_rule(data, seq_len):
    lengths = data.draw(st.lists(st.integers(1, seq_len), max_size=80))
    instances = packed(lengths, seq_len)
    assert instances == by_the_rule(lengths, seq_len)
    assert sorted(chain(*instances)) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in instance) <= seq_len for instance in instances)


def test_of_equal_documents_the_earlier_goes_first():
    assert packed([4, 4, 4, 2, 2, 1], 6) == [[0, 3], [1, 4], [2, 5]]


@given(tokens=st.lists(st.integers(0, 3), max_size=40), scanned=st.integers(1, 50))
def test_documents_end_with_the_end(tokens, scanned):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SCANNED", scanned)
        bounds = documents(np.array(tokens, np.uint16), 3)
    assert bounds.tolist() == [0, *(i + 1 for i, token in enumerate(tokens) if token == 3)]
