import hashlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.data import Instances
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.token_file import open_file
from olmo_hydra.data.instances.kinds import Packed
from olmo_hydra.data.loader import Batches, Cut
from olmo_hydra.data.sampler import Sampler
from tests.data.token_files import END, PAD, batches_of, write


@pytest.fixture
def two_files(tmp_path):
    """Two files of 1,000 tokens whose values say where they stand: 0 to 999, 1000 to 1999."""
    return [write(tmp_path / "0.bin", np.arange(1000)), write(tmp_path / "1.bin", np.arange(1000, 2000))]


def test_instances_are_cut_file_by_file(two_files):
    # OLMo-core, measured: 15 + 15 instances of 64, instance 15 starts at token 0 of the second file.
    batches = batches_of(two_files, seq_len=64, global_batch=30, seed=0, vocab_size=2000)
    assert len(batches.source) == 30 and batches.source.dropped == 2 * 40
    batch = batches.batch(0)
    starts = dict(zip(batch.instances_B.tolist(), batch.tokens_BT[:, 0].tolist(), strict=True))
    assert starts == {i: 64 * i for i in range(15)} | {15 + i: 1000 + 64 * i for i in range(15)}
    assert (np.diff(batch.tokens_BT, axis=1) == 1).all()


def test_batches_are_olmo_cores(two_files):
    batches = batches_of(two_files, seq_len=64, global_batch=4, seed=0, vocab_size=2000)
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


@pytest.mark.parametrize(
    ("instances", "labels"),
    [
        (Instances.windows, [[2, END, -100, 4, END, -100]]),
        (Instances.packed, [[2, END, -100, 4, END, -100]]),
        (Instances.padded, [[2, END, *[-100] * 4], [4, END, *[-100] * 4]]),
    ],
)
def test_what_a_label_mask_leaves_out(tmp_path, instances, labels):
    # OLMo-core's golden: a token whose mask is false is no target, of the position before it.
    file = write(tmp_path / "t.bin", [1, 2, END, 3, 4, END])
    mask = write(tmp_path / "m.bin", [True, True, True, False, True, True], bool)
    batch = batches_of(
        [file], seq_len=6, global_batch=len(labels), seed=0, instances=instances, masks=[mask]
    ).batch(0)  # fmt: skip
    assert batch.labels_BT[batch.instances_B.argsort()].tolist() == labels


def test_instances_that_repeat_themselves_have_no_targets(tmp_path):
    rng = np.random.default_rng(0)
    text = rng.integers(0, 256, (3, 64))
    text[1, 10:42] = 7
    file = write(tmp_path / "t.bin", text.reshape(-1))
    batch = batches_of([file], seq_len=64, global_batch=3, seed=0, repetition_filter=True).batch(0)
    at = batch.instances_B.argsort()
    assert batch.masked_B[at].tolist() == [False, True, False]
    assert (batch.labels_BT[at][1] == -100).all() and (batch.labels_BT[at][[0, 2], :-1] == text[[0, 2], 1:]).all()
    np.testing.assert_array_equal(batch.tokens_BT[at], text)


def test_padding_is_repetition_only_where_it_shall_be(tmp_path):
    # OLMo-core filters packed instances with their padding: 31 pads are kept, 32 caught.
    documents = [[*range(1, 70 - pads), END] for pads in (31, 32)]
    files = [write(tmp_path / f"{pads}.bin", document) for pads, document in zip((31, 32), documents, strict=True)]
    for filter_padding, masked in [(False, [False, False]), (True, [False, True])]:
        batch = batches_of(
            files, seq_len=70, global_batch=2, seed=0, instances=Instances.packed, repetition_filter=True,
            filter_padding=filter_padding,
        ).batch(0)  # fmt: skip
        assert batch.masked_B[batch.instances_B.argsort()].tolist() == masked


def test_tokens_are_counted_by_label(tmp_path):
    paths = [write(tmp_path / f"{i}.bin", [1] * n + [END]) for i, n in enumerate((3, 4, 5))]
    files = [open_file(path, np.dtype("<u2"), label=label) for path, label in zip(paths, "aba", strict=True)]
    source = Packed(files, 16, 3, END, tmp_path)
    batches = Batches(files, source, Sampler(1, 1, seed=0, folder=tmp_path), Cut(16, 301, END, PAD))
    assert batches.labels == ["a", "b"] and batches.batch(0).by_label_BL.tolist() == [[10, 5]]


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
        assert len(batches_of(files, seq_len=seq_len, global_batch=1, seed=seed).source) == 0
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


def same(batch, other):
    for name, value in vars(batch).items():
        np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)
        assert type(value) is type(getattr(other, name))


@pytest.mark.parametrize(("threads", "workers"), [(0, 0), (1, 0), (2, 0), (4, 0), (0, 1), (2, 1), (2, 2)])
def test_reading_ahead_changes_no_batch(two_files, threads, workers):
    batches = batches_of(two_files, seq_len=64, global_batch=4, seed=3, vocab_size=2000, document_mask=True)
    pure = batches_of(two_files, seq_len=64, global_batch=4, seed=3, vocab_size=2000, document_mask=True)
    start, n = 5, 12  # across two ends of epochs
    with closing(batches.iterate(start, 1, 2, threads=threads, workers=workers)) as stream:
        for expected, batch in zip(range(start, start + n), stream, strict=False):
            assert batch.n == expected and (batch.epoch, batch.row) == (1 + expected // 7, expected % 7)
            same(batch, pure.batch(expected, 1, 2))
    assert not multiprocessing.active_children()


def test_eight_batches_are_five_and_the_next_three(two_files):
    def hashes(start, count):
        batches = batches_of(two_files, seq_len=64, global_batch=4, seed=3, vocab_size=2000)
        with closing(batches.iterate(start)) as stream:
            return [hashlib.sha256(batch.tokens_BT).hexdigest() for batch in itertools.islice(stream, count)]

    assert hashes(0, 8) == hashes(0, 5) + hashes(5, 3) and len(set(hashes(0, 8))) == 8


def test_closing_stops_the_threads(two_files):
    before = set(threading.enumerate())
    stream = batches_of(two_files, seq_len=64, global_batch=4, seed=0, vocab_size=2000).iterate(0)
    assert [batch.n for batch in itertools.islice(stream, 3)] == [0, 1, 2]
    threads = set(threading.enumerate()) - before
    assert threads
    stream.close()
    for thread in threads:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_reader_is_the_runs(two_files, workers):
    batches = batches_of(two_files, seq_len=64, global_batch=4, seed=0)  # of 301 ids
    with closing(batches.iterate(0, workers=workers)) as stream, pytest.raises(RequestError) as caught:
        list(itertools.islice(stream, 9))
    assert "is past the 301 ids of data.tokenizer" in str(caught.value) and ".bin, at token " in caught.value.where


def test_workers_end_with_a_run_that_is_killed(two_files, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        """
import multiprocessing, os, signal, sys

def main():
    from pathlib import Path
    from tests.data.token_files import batches_of

    batches = batches_of([Path(path) for path in sys.argv[1:]], seq_len=64, global_batch=4, seed=0, vocab_size=2000)
    next(stream := batches.iterate(0, workers=2))
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    # Not until its output ends: the workers hold it too.
    run = subprocess.Popen([sys.executable, script, *two_files], stdout=subprocess.PIPE, text=True, env=environment)
    workers = [Path(f"/proc/{worker}/cmdline") for worker in run.stdout.readline().split()]
    assert run.wait(60) == -signal.SIGKILL and len(workers) == 2
    deadline = time.monotonic() + 30
    while any(worker.exists() and worker.read_bytes() for worker in workers):  # none of a process that nobody reaps
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_leave_nothing_behind(two_files, tmp_path):
    """As `train.py` does it: a thin main module, closed at the end; nothing is said at the exit."""
    script = tmp_path / "main.py"
    script.write_text(
        """
import multiprocessing, os, signal, sys, threading, time
from contextlib import closing
from olmo_hydra.data.signals import STOPPING

def interrupt_workers_that_start():
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.01)
    for number in 3 * STOPPING:
        os.killpg(os.getpgid(0), number)
        time.sleep(0.1)

def main():
    from pathlib import Path
    from tests.data.token_files import batches_of

    for number in STOPPING:
        signal.signal(number, lambda number, frame: None)  # as a run that stops after the update at hand
    batches = batches_of([Path(path) for path in sys.argv[1:]], seq_len=64, global_batch=4, seed=0, vocab_size=2000)
    threading.Thread(target=interrupt_workers_that_start).start()
    with closing(batches.iterate(0, workers=2)) as stream:
        print([next(stream).n for _ in range(3)])
        for number in STOPPING:
            os.killpg(os.getpgid(0), number)
        print([next(stream).n for _ in range(20)][-1])

if __name__ == "__main__":
    main()
"""
    )
    done = subprocess.run(
        [sys.executable, script, *two_files],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    # Python's own tracker may say that it cleans up what was read ahead and not taken.
    said = [line for line in done.stderr.splitlines() if "resource_tracker" not in line]
    assert (done.returncode, done.stdout, said) == (0, "[0, 1, 2]\n22\n", [])
