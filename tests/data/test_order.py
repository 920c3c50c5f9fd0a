"""Goldens: OLMo-core 3.0.0's loader, measured by running it."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.compose import compose
from olmo_hydra.data.order import global_batches, instance_order

GOLDENS = [
    (10, 34521, 1, [5, 9, 8, 4, 0, 6, 1, 2, 7, 3], "a571a9f96928fb7ac4cd4bab0ba5daf0aa397935"),
    (1000, 34521, 1, [905, 250, 414, 554, 333, 834, 537, 775], "ebd4e2d95ccd259747bd130bc05424b73ce43c36"),
    (1000, 34521, 2, [586, 379, 498, 271, 249, 597, 383, 709], "4d9bfc71a0d4194332bcf305150552b01070e74f"),
    (30, 0, 1, [21, 16, 7, 1, 3, 28, 15, 11, 25, 20], "dbd1a5817bc6769afc9adeeb4e6dae1b887ffb36"),
    (100_000, 34521, 1, [3905, 35708, 5676, 91286, 98684], "9f796db4fd617d1af0212cfd5f3209df53dcd2a7"),
]


@pytest.mark.parametrize(("n", "seed", "epoch", "first", "sha1"), GOLDENS)
def test_olmo_core_order(n, seed, epoch, first, sha1):
    order = instance_order(n, seed=seed, epoch=epoch)
    assert order.dtype == np.uint32
    assert order[: len(first)].tolist() == first
    assert hashlib.sha1(order.tobytes()).hexdigest() == sha1


def test_olmo_core_chunks():
    assert instance_order(56, seed=0, epoch=1, chunk=4)[:8].tolist() == [4, 5, 6, 7, 40, 41, 42, 43]


def test_olmo_core_batches():
    batches = global_batches(30, 4, seed=0, epoch=1)
    assert batches.shape == (7, 4)
    assert batches[:3].tolist() == [[21, 16, 7, 1], [3, 28, 15, 11], [25, 20, 24, 29]]


@given(n=st.integers(0, 300), seed=st.integers(0, 2**32 - 1), epoch=st.integers(1, 9), chunk=st.integers(1, 7))
def test_an_epoch_visits_every_whole_chunk_once(n, seed, epoch, chunk):
    order = instance_order(n, seed=seed, epoch=epoch, chunk=chunk)
    assert sorted(order.tolist()) == list(range(n // chunk * chunk))
    assert (np.diff(order.reshape(-1, chunk).astype(int), axis=1) == 1).all()


def test_impossible_orders():
    with pytest.raises(ValueError, match="from 1"):
        instance_order(4, seed=0, epoch=0)
    with pytest.raises(ValueError, match="uint32"):
        instance_order(2**32, seed=0, epoch=1)


def test_the_order_has_a_seed_of_its_own_or_the_runs():
    assert [compose(typed).data.seed for typed in (["train.seed=7"], ["train.seed=7", "data.seed=3"])] == [7, 3]
