"""Goldens: OLMo-core 3.0.0's loader, measured by running it."""

import hashlib
import json
import multiprocessing
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data import order as order_module
from olmo_hydra.data.order import Order, shuffled

GOLDENS = [
    (10, 34521, 1, [5, 9, 8, 4, 0, 6, 1, 2, 7, 3], "a571a9f96928fb7ac4cd4bab0ba5daf0aa397935"),
    (1000, 34521, 1, [905, 250, 414, 554, 333, 834, 537, 775], "ebd4e2d95ccd259747bd130bc05424b73ce43c36"),
    (1000, 34521, 2, [586, 379, 498, 271, 249, 597, 383, 709], "4d9bfc71a0d4194332bcf305150552b01070e74f"),
    (30, 0, 1, [21, 16, 7, 1, 3, 28, 15, 11, 25, 20], "dbd1a5817bc6769afc9adeeb4e6dae1b887ffb36"),
    (100_000, 34521, 1, [3905, 35708, 5676, 91286, 98684], "9f796db4fd617d1af0212cfd5f3209df53dcd2a7"),
]


@pytest.mark.parametrize(("n", "seed", "epoch", "first", "sha1"), GOLDENS)
def test_olmo_core_order(tmp_path, n, seed, epoch, first, sha1):
    order = Order(tmp_path, n, seed=seed)
    numbers = order.read(epoch, 0, n)
    assert numbers.dtype == np.uint32
    assert numbers[: len(first)].tolist() == first
    assert hashlib.sha1(numbers.tobytes()).hexdigest() == sha1
    assert hashlib.sha1(order.file(epoch).read_bytes()).hexdigest() == sha1  # OLMo-core's file


def test_olmo_core_chunks(tmp_path):
    order = Order(tmp_path, 56, seed=0, chunk=4)
    assert order.read(1, 0, 8).tolist() == [4, 5, 6, 7, 40, 41, 42, 43]
    assert order.file(1).name == "global_indices_chunk4_dataset_size56_epoch1_seed0_v1.npy"
    assert Order(tmp_path, 10, seed=34521).file(2).name == "global_indices_dataset_size10_epoch2_seed34521_v1.npy"


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(1, 9),
    chunk=st.integers(1, 7),
    block=st.integers(1, 50),
)
def test_an_epoch_visits_every_whole_chunk_once(tmp_path_factory, n, seed, epoch, chunk, block):
    if n < chunk:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "BLOCK", block)
        order = Order(tmp_path_factory.mktemp("order"), n, seed=seed, chunk=chunk)
        numbers = order.read(epoch, 0, order.length)
        assert sorted(numbers.tolist()) == list(range(n // chunk * chunk))
        assert (np.diff(numbers.reshape(-1, chunk).astype(int), axis=1) == 1).all()
        assert order.read(epoch, n // chunk // 2, 1) == numbers[n // chunk // 2]


def test_more_instances_than_numbers(tmp_path):
    assert Order(tmp_path, 2**32 - 2, seed=0).length == 2**32 - 2
    with pytest.raises(RequestError, match="uint32"):
        Order(tmp_path, 2**32 - 1, seed=0)


def read_in_process(folder, n, seed=5):
    return Order(folder, n, seed=seed).read(1, 0, n).tobytes()


def test_threads_and_processes_make_an_order_once(tmp_path, monkeypatch):
    n = 300_000
    made = []
    monkeypatch.setattr(order_module, "shuffled", lambda *of: made.append(of) or shuffled(*of))
    with ThreadPoolExecutor(4) as threads:
        in_threads = list(threads.map(lambda _: read_in_process(tmp_path / "threads", n), range(4)))
    assert made == [(n, 6)]
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        in_processes = processes.starmap(read_in_process, [(tmp_path / "processes", n)] * 4)
    assert {*in_threads, *in_processes} == {shuffled(n, 6).tobytes()}
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_dead_process_left_behind(tmp_path):
    order = Order(tmp_path, 1000, seed=34521)
    order.file(1).with_name(order.file(1).name + ".partial").write_bytes(bytes(40))
    order.make(1)
    assert hashlib.sha1(order.file(1).read_bytes()).hexdigest() == GOLDENS[1][4]
    assert not list(tmp_path.glob("*.partial"))


def saved(folder, n=2000):
    """The order of seed 1 as a run before has left it."""
    Order(folder, n, seed=1).make(1)
    order = Order(folder, n, seed=1)
    return order, np.fromfile(order.file(1), "<u4"), order.file(1).with_suffix(".blocks.json")


@pytest.mark.parametrize(
    "damage",
    ["short", "long", "changed", "no note, twice the same", "no note, other seed", "other note, other seed", "note"],
)
@pytest.mark.parametrize("block", [1 << 18, 64])
def test_a_saved_order_is_not_trusted(tmp_path, monkeypatch, damage, block):
    monkeypatch.setattr(order_module, "BLOCK", block)
    order, numbers, note = saved(tmp_path)
    match damage:
        case "short":
            numbers = numbers[:-1]
        case "long":
            numbers = np.append(numbers, np.uint32(0))
        case "changed":
            numbers[501] = numbers[500]
        case "no note, twice the same":
            note.unlink()
            numbers[501] = numbers[500]
        case "no note, other seed":
            note.unlink()
            numbers = shuffled(2000, 3)
        case "other note, other seed":
            other = Order(tmp_path, 2000, seed=2)
            numbers = other.read(1, 0, 2000)
            note.write_bytes(other.file(1).with_suffix(".blocks.json").read_bytes())
        case "note":
            note.write_text("{}")
    numbers.tofile(order.file(1))
    with pytest.raises(RequestError) as caught:
        order.read(1, 500, 2)
    assert caught.value.where == str(order.file(1)) and caught.value.instead == "delete the file"
    order.file(1).unlink()
    again = Order(tmp_path, 2000, seed=1)
    assert again.read(1, 0, 2000).tobytes() == shuffled(2000, 2).tobytes()
    assert not list(tmp_path.rglob("*.partial"))


def test_a_long_order_of_another_seed_is_no_order_of_this_one(tmp_path):
    n = 2**20 + 5
    order = Order(tmp_path, n, seed=1)
    shuffled(n, 3).tofile(order.file(1))
    with pytest.raises(RequestError, match="is not the order of seed 1"):
        order.read(1, 0, 1)
    assert not order.file(1).with_suffix(".blocks.json").exists()


def test_a_number_that_changed_in_a_long_order_is_never_given_out(tmp_path):
    order, numbers, _ = saved(tmp_path, n=2**20)
    numbers[700_001], numbers[700_002] = numbers[700_002], numbers[700_001]
    numbers.tofile(order.file(1))
    assert order.read(1, 0, 4).tolist() == shuffled(2**20, 2)[:4].tolist()
    for _ in range(2):
        with pytest.raises(RequestError, match="has changed, after number 524,288"):
            order.read(1, 700_000, 8)


def test_an_order_that_another_program_wrote_is_compared_once(tmp_path, monkeypatch):
    order = Order(tmp_path, 2000, seed=1)
    shuffled(2000, 2).tofile(order.file(1))
    monkeypatch.setattr("os.access", lambda *_: False)  # a shared folder, that each reader looks at
    assert order.read(1, 0, 3).tolist() == shuffled(2000, 2)[:3].tolist()
    assert not order.file(1).with_suffix(".blocks.json").exists()
    monkeypatch.undo()
    made = []
    monkeypatch.setattr(order_module, "shuffled", lambda *of: made.append(of) or shuffled(*of))
    with ThreadPoolExecutor(4) as threads:
        given = {*threads.map(lambda _: read_in_process(tmp_path, 2000, seed=1), range(8))}
    assert given == {shuffled(2000, 2).tobytes()} and made == [(2000, 2)]
    assert json.loads(order.file(1).with_suffix(".blocks.json").read_text())["rule"] == "pcg64-v1"
    assert not list(tmp_path.rglob("*.partial"))


def test_the_hash_of_an_order(tmp_path):
    one, same, other = (Order(tmp_path / str(i), 2000, seed=seed) for i, seed in enumerate((1, 1, 2)))
    assert one.sha256(1) == same.sha256(1) == Order(one.folder, 2000, seed=1).sha256(1)
    assert len({one.sha256(1), one.sha256(2), other.sha256(2)}) == 3


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError) as caught:
        Order(tmp_path / "file", 10, seed=0).read(1, 0, 1)
    assert caught.value.key == "run.root"


def test_a_full_disk(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(RequestError, match="cannot write to the cache") as caught:
            Order(tmp_path, 100_000, seed=0).read(1, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "None" not in str(caught.value) and [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_order_has_a_seed_of_its_own_or_the_runs():
    assert [compose(typed).data.seed for typed in (["train.seed=7"], ["train.seed=7", "data.seed=3"])] == [7, 3]
