"""Goldens: OLMo-core 3.0.0's loader on two ranks, measured by running it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.sampler import Sampler


def test_olmo_core_batches(tmp_path):
    sampler = Sampler(30, 4, seed=0, folder=tmp_path)
    assert sampler.batches_per_epoch == 7
    assert sampler.take(0, 3).tolist() == [[21, 16, 7, 1], [3, 28, 15, 11], [25, 20, 24, 29]]
    assert sampler.take(0, 2, 0, 2).tolist() == [[21, 7], [3, 15]]
    assert sampler.take(0, 2, 1, 2).tolist() == [[16, 1], [28, 11]]


@settings(deadline=None, max_examples=60)
@given(
    share=st.integers(1, 5),
    n_batches=st.integers(1, 6),
    rest=st.integers(0, 40),
    chunk=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_processes_share_every_batch(tmp_path_factory, share, n_batches, rest, chunk, seed, data):
    global_batch = 8 * share
    n = global_batch * n_batches + rest % global_batch
    n += -n % chunk
    sampler = Sampler(n, global_batch, seed=seed, chunk=chunk, folder=tmp_path_factory.mktemp("order"))
    epoch = sampler.batches_per_epoch
    assert epoch == n // global_batch
    whole = sampler.take(0, 2 * epoch)
    assert whole.dtype == np.uint32 and whole.shape == (2 * epoch, global_batch)
    for of_epoch in np.split(whole, 2):
        assert len(np.unique(of_epoch)) == of_epoch.size and of_epoch.max() < n
    for processes in (1, 2, 4, 8):
        parts = [sampler.take(0, 2 * epoch, process, processes) for process in range(processes)]
        np.testing.assert_array_equal(np.stack(parts, axis=2).reshape(whole.shape), whole)
    first = data.draw(st.integers(0, 2 * epoch - 1))
    count = data.draw(st.integers(1, 2 * epoch - first))
    np.testing.assert_array_equal(sampler.take(first, count), whole[first : first + count])
    assert sampler.place(first) == (1 + first // epoch, first % epoch)


def test_the_tail_of_an_epoch_is_dropped(tmp_path):
    # 10 instances in batches of 4: the last two of each order are not read, nothing wraps around.
    sampler = Sampler(10, 4, seed=34521, folder=tmp_path)
    assert sampler.take(0, 2).reshape(-1).tolist() == [5, 9, 8, 4, 0, 6, 1, 2]
    assert sampler.place(2) == (2, 0)


def test_a_batch_that_processes_cannot_share(tmp_path):
    with pytest.raises(RequestError, match="4 processes") as caught:
        Sampler(30, 6, seed=0, folder=tmp_path).take(0, 1, 0, 4)
    assert caught.value.key == "train.global_batch" and "train.global_batch=8" in str(caught.value)
