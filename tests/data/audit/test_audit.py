"""What the processes of a run read: simulated from its sampler, against sets that are counted here."""

from collections import Counter
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.data.audit import consumption
from olmo_hydra.data.audit.audit import findings, masked
from olmo_hydra.data.audit.consumption import simulate
from olmo_hydra.data.audit.picture import Bar, picture
from olmo_hydra.data.instances.kinds import Part
from olmo_hydra.data.loader import Batches
from olmo_hydra.data.sampler import Sampler
from tests.data.token_files import batches_of, write


class ShardsTwice(Sampler):
    """The sampler gives a process its share of a batch, and the loader takes every P-th batch again."""

    def take(self, first, count, process=0, processes=1):
        rows = (n * processes + process for n in range(first, first + count))
        return np.concatenate([super(ShardsTwice, self).take(row, 1, process, processes) for row in rows])


class DoesNotShard(Sampler):
    def take(self, first, count, process=0, processes=1):
        return super().take(first, count)[:, : self.global_batch // processes]


class DrawsAgain(Sampler):
    """With replacement."""

    def take(self, first, count, process=0, processes=1):
        rng = np.random.default_rng(first)
        drawn = rng.integers(0, self.n_instances, (count, self.global_batch), dtype=np.uint32)
        return drawn[:, process::processes]


def one_part(n):
    return [Part(0, n, (0,))]


def reading(sampler, parts):
    """Batches of a corpus of which nothing but its parts is looked at."""
    return Batches([], SimpleNamespace(parts=parts), sampler, None)


class SharesAgain(Batches):
    """The sampler gives a process its share of a batch, and what reads takes the process's share of that."""

    def instances(self, first, count, process=0, processes=1):
        return super().instances(first, count, process, processes)[:, process::processes]


def test_batches_that_share_what_the_sampler_has_shared(tmp_path):
    path = write(tmp_path / "0.bin", np.arange(1024) % 256)
    right = batches_of([path], seq_len=16, global_batch=8, seed=0, folder=tmp_path)
    batches = SharesAgain(right.files, right.source, right.sampler, right.cut)
    read = {i for n in range(8) for p in range(2) for i in batches.batch(n, p, 2).instances_B.tolist()}
    found = simulate(batches, 1, steps=8, processes=2)
    assert (found.reads, found.distinct, len(read)) == (32, 32, 32)  # each once, but half of them by no process
    unread, differing = findings(batches.sampler, found, 2)
    assert "32 instances of its batches are read by no process" in unread and "read 4 of it" in unread
    assert "8 of 8 batches" in differing


@pytest.mark.parametrize("seed", range(5))
def test_two_hosts_that_shard_twice(tmp_path, seed):
    # MaxText 0.2.5, measured: of 64 instances 46 to 52 are distinct in a nominal epoch of 2 hosts.
    sampler = ShardsTwice(64, 8, seed=seed, folder=tmp_path)
    found = simulate(reading(sampler, one_part(64)), 1, steps=8, processes=2)
    assert found.reads == 64 and 44 <= found.distinct <= 54
    repeats, differing = findings(sampler, found, 2)
    assert f"{64 - found.distinct} of 64 reads" in repeats and "1-(1-1/2)^2 = 75.0%" in repeats
    assert "8 of 8 batches, from 0 on" in differing


@pytest.mark.parametrize(
    ("kind", "share", "words"),
    [
        (ShardsTwice, 1 - (7 / 8) ** 8, "shard twice"),
        (DoesNotShard, 1 / 8, "not sharded"),
        (DrawsAgain, 1 - np.exp(-1), "replacement"),
    ],
)
def test_causes(tmp_path, kind, share, words):
    sampler = kind(80_000, 80, seed=1, folder=tmp_path)
    found = simulate(reading(sampler, one_part(80_000)), 1, steps=1, processes=8 if kind is not DrawsAgain else 1)
    assert found.distinct / found.reads == pytest.approx(share, abs=0.01)
    assert words in findings(sampler, found, 8 if kind is not DrawsAgain else 1)[0]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    chunk=st.integers(1, 3),
    processes=st.integers(1, 4),
    width=st.integers(1, 6),
    epoch=st.integers(1, 3),
    is_broken=st.booleans(),
    pieces=st.integers(1, 4),
    data=st.data(),
)
def test_counts_are_those_of_a_set(tmp_path_factory, sizes, chunk, processes, width, epoch, is_broken, pieces, data):
    sizes = [size // chunk * chunk for size in sizes]
    n, batch = sum(sizes), processes * width
    if n < batch:
        return
    kind = ShardsTwice if is_broken else Sampler
    sampler = kind(n, batch, seed=7, chunk=chunk, folder=tmp_path_factory.mktemp("orders"))
    per_epoch = sampler.batches_per_epoch
    steps = data.draw(st.integers(1, 3 * per_epoch))
    firsts = np.cumsum([0, *sizes]).tolist()
    parts = [Part(first, size, (0,)) for first, size in zip(firsts, sizes, strict=False)]
    read, of_run = Counter(), Counter()
    for number in range((epoch - 1) * per_epoch, epoch * per_epoch):
        for process in range(processes):
            taken = sampler.take(number, 1, process, processes)[0].tolist()
            read.update(taken)
            of_run.update(taken if number < steps else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumption, "PIECES", pieces)
        found = simulate(reading(sampler, parts), epoch, steps=steps, processes=processes)
    for p, part in enumerate(parts):
        times = [read[i] for i in range(part.first, part.first + part.size)]
        expected = sum(t == 1 for t in times), sum(t == 0 for t in times), sum(t > 1 for t in times)
        assert (found.once_P[p], found.never_P[p], found.repeated_P[p]) == expected
        assert found.run_reads_P[p] == sum(of_run[i] for i in range(part.first, part.first + part.size))
    assert found.reads == per_epoch * batch and found.distinct == len(read)
    assert found.repeats_KN.sum() == found.reads - found.distinct and found.batches_K.sum() == per_epoch
    if not is_broken:
        assert findings(sampler, found, processes) == [] and found.distinct == found.reads


def test_processes_that_share_a_batch_in_another_way(tmp_path):
    class Uneven(Sampler):
        def take(self, first, count, process=0, processes=1):
            batch = super().take(first, count)
            return batch if processes == 1 else batch[:, :1] if process == 0 else batch[:, 1:]

    sampler = Uneven(100, 10, seed=0, folder=tmp_path)
    found = simulate(reading(sampler, one_part(100)), 1, steps=1, processes=2)
    assert findings(sampler, found, 2) == [] and found.widths_N == (1, 9)


def test_counts_stop_where_they_end(tmp_path):
    class Stuck(Sampler):
        def take(self, first, count, process=0, processes=1):
            return np.zeros((count, self.global_batch // processes), np.uint32)

    found = simulate(reading(Stuck(1024, 16, seed=0, folder=tmp_path), one_part(1024)), 1, steps=1)  # 4 times 256
    assert (found.distinct, int(found.repeated_P[0]), int(found.never_P[0]), found.reads) == (1, 1, 1023, 1024)


def test_an_epoch_in_pieces_is_the_same(tmp_path, monkeypatch):
    sampler = ShardsTwice(1000, 10, seed=0, folder=tmp_path)
    whole = simulate(reading(sampler, one_part(1000)), 1, steps=57, processes=2)
    monkeypatch.setattr(consumption, "READ_TOGETHER", 30)
    monkeypatch.setattr(consumption, "PIECES", 7)
    pieces = simulate(reading(sampler, one_part(1000)), 1, steps=57, processes=2)
    for field in ("once_P", "never_P", "repeated_P", "run_reads_P", "reads", "differing", "first_differing"):
        assert np.array_equal(getattr(whole, field), getattr(pieces, field)), field
    assert int(pieces.run_reads_P[0]) == 570


def test_what_the_filter_masks(tmp_path):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (400, 64))
    tokens[:100] = 5  # one token 64 times
    path = write(tmp_path / "0.bin", tokens.reshape(-1))
    batches = batches_of([path], seq_len=64, global_batch=4, seed=0, folder=tmp_path, repetition_filter=True)
    assert masked(batches) == (400, 100, 6400.0, 0.0)


def test_an_estimate_of_what_the_filter_masks(tmp_path, monkeypatch):
    monkeypatch.setattr("olmo_hydra.data.audit.audit.FILTER_SAMPLE", 500)
    tokens = np.random.default_rng(0).integers(0, 256, (4000, 64))
    tokens[::4] = 5
    path = write(tmp_path / "0.bin", tokens.reshape(-1))
    batches = batches_of([path], seq_len=64, global_batch=4, seed=0, folder=tmp_path, repetition_filter=True)
    found = masked(batches)
    assert found.looked_at == 500 and abs(found.tokens - 64_000) < 4 * found.standard_error
    # That of a share of 1/4 in 500 of 4,000, drawn without replacement.
    assert found.standard_error == pytest.approx(64 * 4000 * (3 / 16 / 500 * 7 / 8) ** 0.5, rel=0.1)
    assert masked(batches, everything=True) == (4000, 1000, 64_000.0, 0.0)


def test_the_picture(tmp_path):
    bars = [Bar(f"web <{i}>", 60 - i, 5, i, 2.5) for i in range(50)]
    repeated_KN = np.linspace(0, 1, 7 * 40).reshape(7, 40)
    root = ElementTree.fromstring(picture("a & b", "fine", bars, repeated_KN))
    rectangles = [
        tuple(float(one.get(key)) for key in ("x", "y", "width", "height")) for one in root.iter() if one.get("fill")
    ]
    width, height = float(root.get("width")), float(root.get("height"))

    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in rectangles)
    words = "".join(text for text in root.itertext())
    assert "web <0>" in words and "11 others" in words and "processes 38 to 39" in words
