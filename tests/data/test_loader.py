import itertools
import threading

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data import loader
from tests.data.token_files import END, batches_of, write


@pytest.fixture
def two_files(tmp_path):
    """Two files of 1,000 tokens whose values say where they stand: 0 to 999, 1000 to 1999."""
    return [write(tmp_path / "0.bin", np.arange(1000)), write(tmp_path / "1.bin", np.arange(1000, 2000))]


def test_instances_are_cut_file_by_file(two_files):
    # OLMo-core, measured: 15 + 15 instances of 64, instance 15 starts at token 0 of the second file.
    batches = batches_of(two_files, seq_len=64, global_batch=30, seed=0)
    assert len(batches.source) == 30 and batches.source.dropped == 2 * 40
    batch = batches.batch(0)
    starts = dict(zip(batch.instances_B.tolist(), batch.tokens_BT[:, 0].tolist(), strict=True))
    assert starts == {i: 64 * i for i in range(15)} | {15 + i: 1000 + 64 * i for i in range(15)}
    assert (np.diff(batch.tokens_BT, axis=1) == 1).all()


def test_batches_are_olmo_cores(two_files):
    batches = batches_of(two_files, seq_len=64, global_batch=4, seed=0)
    rows = [batches.batch(n).instances_B.tolist() for n in range(3)]
    assert rows == [[21, 16, 7, 1], [3, 28, 15, 11], [25, 20, 24, 29]]


def test_every_epoch_has_its_own_order(tmp_path):
    # OLMo-core's orders of 1,000 instances in epochs 1 and 2.
    batches = batches_of([write(tmp_path / "t.bin", np.zeros(2000))], seq_len=2, global_batch=5, seed=34521)
    assert batches.batch(0).instances_B.tolist() == [905, 250, 414, 554, 333]
    assert batches.batch(200).instances_B.tolist() == [586, 379, 498, 271, 249]


def test_labels_are_the_next_tokens(tmp_path):
    # OLMo-core's golden: the token after the end of a document is a target.
    batch = batches_of([write(tmp_path / "t.bin", [1, 2, END, 3, 4])], seq_len=5, global_batch=1, seed=0).batch(0)
    assert batch.tokens_BT.tolist() == [[1, 2, END, 3, 4]]
    assert batch.labels_BT.tolist() == [[2, END, 3, 4, -100]] and batch.segments_BT is None
    assert batch.tokens_BT.dtype == batch.labels_BT.dtype == np.int32


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    seq_len=st.integers(2, 9),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_an_epoch_is_every_instance_once(tmp_path_factory, lengths, seq_len, seed, data):
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(seed)
    content = [rng.integers(0, 257, length) for length in lengths]
    windows = [tokens[i : i + seq_len] for tokens in content for i in range(0, len(tokens) - seq_len + 1, seq_len)]
    files = [write(folder / f"{i}.bin", tokens) for i, tokens in enumerate(content)]
    if not windows:
        with pytest.raises(RequestError, match=r"data\.seq_len"):
            batches_of(files, seq_len=seq_len, global_batch=1, seed=seed)
        return
    global_batch = data.draw(st.integers(1, len(windows)))
    batches = batches_of(files, seq_len=seq_len, global_batch=global_batch, seed=seed)
    per_epoch = batches.sampler.batches_per_epoch
    for epoch in (1, 2):
        seen = [batches.batch((epoch - 1) * per_epoch + n) for n in range(per_epoch)]
        assert {batch.epoch for batch in seen} == {epoch}
        instances = np.concatenate([batch.instances_B for batch in seen])
        assert len(set(instances.tolist())) == len(windows) // global_batch * global_batch
        np.testing.assert_array_equal(
            np.concatenate([batch.tokens_BT for batch in seen]), [windows[i] for i in instances]
        )


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_reading_ahead_changes_no_batch(two_files, monkeypatch, threads):
    monkeypatch.setattr(loader, "READ_AHEAD", grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4))
    batches = batches_of(two_files, seq_len=64, global_batch=4, seed=3)
    start, n = 5, 12  # across two ends of epochs
    for expected, batch in zip(range(start, start + n), batches.iterate(start), strict=False):
        assert batch.n == expected
        pure = batches_of(two_files, seq_len=64, global_batch=4, seed=3).batch(expected)
        np.testing.assert_array_equal(batch.tokens_BT, pure.tokens_BT)
        np.testing.assert_array_equal(batch.labels_BT, pure.labels_BT)


def test_closing_stops_the_threads(two_files):
    before = set(threading.enumerate())
    stream = batches_of(two_files, seq_len=64, global_batch=4, seed=0).iterate(0)
    assert [batch.n for batch in itertools.islice(stream, 3)] == [0, 1, 2]
    threads = set(threading.enumerate()) - before
    assert threads
    stream.close()
    for thread in threads:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_batch_beyond_the_data(two_files):
    with pytest.raises(RequestError) as caught:
        batches_of(two_files, seq_len=64, global_batch=31, seed=0)
    assert caught.value.key == "train.global_batch" and "train.global_batch=30" in str(caught.value)


def test_files_that_are_no_token_files(tmp_path):
    np.save(tmp_path / "header.npy", np.arange(100, dtype=np.uint16))
    with pytest.raises(RequestError, match="header"):
        batches_of([tmp_path / "header.npy"], seq_len=4, global_batch=1, seed=0)
    (tmp_path / "torn.bin").write_bytes(bytes(101))
    with pytest.raises(RequestError, match="101 bytes"):
        batches_of([tmp_path / "torn.bin"], seq_len=4, global_batch=1, seed=0)
    tokens = write(tmp_path / "dolma2.bin", np.arange(100_000, 100_008), "<u4")
    batch = batches_of([tokens], seq_len=8, global_batch=1, seed=0, dtype="<u4", vocab_size=100_278).batch(0)
    assert batch.tokens_BT.tolist() == [list(range(100_000, 100_008))]
