"""Packed instances and document numbers, in files and batches. The packing itself is tested in test_packing.py."""

import pickle
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.data import Instances
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.instances import document_index
from olmo_hydra.data.instances.kinds import Packed, Padded, Part
from olmo_hydra.data.loader import document_numbers
from olmo_hydra.data.opened import share
from tests.data.token_files import END, PAD, batches_of, files_of, write


@pytest.mark.parametrize(
    ("text", "seq_len", "lengths"),
    [
        # OLMo-core's goldens; in the third 8 tokens of padding follow.
        ([1, 2, END, 3, END, 4, 5], 7, [3, 2, 2]),
        ([1, 2, END], 3, [3]),
        ([*[1] * 89, END, *[1] * 29, END], 128, [90, 30, 8]),
        ([END, END, 1, END], 6, [1, 1, 2, 2]),
        ([1], 1, [1]),
    ],
)
def test_documents_are_numbered(text, seq_len, lengths):
    segments = document_numbers(np.array(text, np.uint16), END, seq_len)
    assert segments.dtype == np.int32
    assert segments.tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()


@pytest.mark.parametrize("pad", [END, PAD])
def test_a_packed_instance(tmp_path, pad):
    # Documents of 4, 3, 9 and 2 tokens, the third cut to 8; the last token has no end after it.
    files = [
        write(tmp_path / "0.bin", [1, 2, 3, END, 4, 5, END]),
        write(tmp_path / "1.bin", [*range(11, 19), END, 6, END, 7]),
        write(tmp_path / "2.bin", []),
    ]
    batches = batches_of(
        files, seq_len=8, global_batch=3, seed=0, instances=Instances.packed, pack_files=8, document_mask=True, pad=pad
    )
    assert (len(batches.source), batches.source.dropped, batches.source.padding) == (3, 1 + 1, 1 + 6)
    assert share(batches.source, 8) == (
        "3 instances of 8 tokens, 29.2% of them padding; 2 tokens (10.5%) of the files are in none"
    )
    batch = batches.batch(0)
    at = batch.instances_B.argsort()
    assert batch.tokens_BT[at].tolist() == [
        [*range(11, 19)],
        [1, 2, 3, END, 4, 5, END, pad],
        [6, END, pad, pad, pad, pad, pad, pad],
    ]
    assert batch.labels_BT[at].tolist() == [
        [*range(12, 19), -100],
        [2, 3, END, 4, 5, END, -100, -100],
        [END, *[-100] * 7],
    ]
    assert batch.segments_BT[at].tolist() == [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 1, 1, 1, 1]]
    assert batch.tokens_BT.dtype == batch.labels_BT.dtype == batch.segments_BT.dtype == np.int32


def test_only_files_of_one_group_are_packed_together(tmp_path):
    files = [write(tmp_path / f"{i}.bin", [i, i, END]) for i in range(5)]
    for pack_files, instances in [(1, [[0], [1], [2], [3], [4]]), (2, [[0, 1], [2, 3], [4]]), (8, [[0, 1, 2, 3, 4]])]:
        batches = batches_of(
            files,
            seq_len=15,
            global_batch=len(instances),
            seed=1,
            instances=Instances.packed,
            pack_files=pack_files,
        )
        batch = batches.batch(0)
        in_order = batch.tokens_BT[batch.instances_B.argsort()]
        assert [row[row < END][::2].tolist() for row in in_order] == instances


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=20), min_size=1, max_size=5),
    pack_files=st.integers(1, 6),
    seq_len=st.integers(2, 32),
    seed=st.integers(0, 2**32 - 1),
    pad=st.sampled_from([END, PAD]),
)
def test_every_document_is_in_one_instance(tmp_path_factory, lengths, pack_files, seq_len, seed, pad):
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(seed)
    files, texts = [], []
    for i, of_file in enumerate(lengths):
        documents = [[*rng.integers(0, END, length - 1).tolist(), END] for length in of_file]
        rest = rng.integers(0, END, rng.integers(0, 3)).tolist()
        files.append(write(folder / f"{i}.bin", [*chain(*documents), *rest]))
        texts += [tuple(document[:seq_len]) for document in documents]
    batches = batches_of(
        files,
        seq_len=seq_len,
        global_batch=1,
        seed=seed,
        instances=Instances.packed,
        pack_files=pack_files,
        document_mask=True,
        pad=pad,
    )
    found, padding = [], 0
    for n in range(len(batches.source)):
        batch = batches.batch(n)
        tokens, labels, segments = batch.tokens_BT[0], batch.labels_BT[0], batch.segments_BT[0]
        assert segments[0] == 0 and set(np.diff(segments).tolist()) <= {0, 1}
        parts = [tuple(tokens[segments == segment].tolist()) for segment in range(segments[-1] + 1)]
        n_text = seq_len
        if labels[-2] == -100:  # padded: the position before the last would have a target otherwise
            n_text -= len(parts[-1])
            assert set(parts.pop()) == {pad}
        found += parts
        padding += seq_len - n_text
        assert labels[: n_text - 1].tolist() == tokens[1:n_text].tolist() and set(labels[n_text - 1 :]) == {-100}
    assert sorted(found) == sorted(texts)
    assert padding == batches.source.padding
    in_files = sum(file.stat().st_size for file in files) // 2
    assert batches.source.dropped == in_files - sum(map(len, texts))


@pytest.mark.parametrize("instances", Instances)
def test_reading_ahead_of_masked_documents(tmp_path, instances):
    rng = np.random.default_rng(5)
    files = [write(tmp_path / f"{i}.bin", rng.choice([1, 2, 3, END], 500)) for i in range(3)]
    batches, pure = (
        batches_of(files, seq_len=16, global_batch=4, seed=9, instances=instances, pack_files=2, document_mask=True)
        for _ in range(2)
    )
    start = batches.sampler.batches_per_epoch - 3
    for expected, batch in zip(range(start, start + 6), batches.iterate(start), strict=False):
        again = pure.batch(expected)
        assert (batch.n, batch.epoch) == (again.n, again.epoch)
        for name in ("instances_B", "tokens_BT", "labels_BT", "segments_BT"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(again, name))


def test_windows_of_masked_documents(tmp_path):
    # The documents of a window; the one that a window cuts starts anew in the next.
    file = write(tmp_path / "t.bin", [1, END, 2, 3, END, 4, 5, 6])
    batch = batches_of([file], seq_len=4, global_batch=2, seed=0, document_mask=True).batch(0)
    at = batch.instances_B.argsort()
    assert batch.segments_BT[at].tolist() == [[0, 0, 1, 1], [0, 1, 1, 1]]
    assert batch.labels_BT[at].tolist() == [[END, 2, 3, -100], [4, 5, 6, -100]]


def test_padded_documents(tmp_path):
    files = [
        write(tmp_path / "0.bin", [1, 2, 3, END, 4, 5, END]),
        write(tmp_path / "1.bin", [*range(11, 19), END, 6, END, 7]),
    ]
    batches = batches_of(files, seq_len=6, global_batch=4, seed=0, instances=Instances.padded, document_mask=True)
    assert (batches.source.dropped, batches.source.padding) == (3 + 1, 2 + 3 + 4)
    batch = batches.batch(0)
    at = batch.instances_B.argsort()
    assert batch.tokens_BT[at].tolist() == [
        [1, 2, 3, END, PAD, PAD], [4, 5, END, PAD, PAD, PAD], [*range(11, 17)], [6, END, PAD, PAD, PAD, PAD],
    ]  # fmt: skip
    assert batch.labels_BT[at].tolist()[0] == [2, 3, END, -100, -100, -100]
    assert batch.segments_BT[at].tolist()[3] == [0, 0, 1, 1, 1, 1]
    assert batches.source.parts == [Part(0, 2, (0,)), Part(2, 2, (1,))]


@pytest.mark.parametrize("of", [lambda *args: Packed(*args[:2], 2, *args[2:]), Padded])
def test_documents_are_looked_for_once(tmp_path, monkeypatch, of):
    rng = np.random.default_rng(5)
    paths = [write(tmp_path / f"{i}.bin", rng.choice([1, 2, 3, END], 5000)) for i in range(3)]
    first = of(files_of(paths), 16, END, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(document_index, "documents", None)
        again = pickle.loads(pickle.dumps(of(files_of(paths), 16, END, tmp_path / "cache")))
    assert len(pickle.dumps(again)) < 2000  # opened where it is read
    assert [again.spans(i) for i in range(len(again))] == [first.spans(i) for i in range(len(first))]
    assert (again.parts, again.dropped, again.padding) == (first.parts, first.dropped, first.padding)
    tokens = np.fromfile(paths[2], "<u2")
    tokens[2000] = END if tokens[2000] != END else 1  # where no sample is taken
    write(paths[2], tokens)
    moved = of(files_of(paths), 16, END, tmp_path / "cache")
    assert [moved.spans(i) for i in range(len(moved))] != [first.spans(i) for i in range(len(first))]
    write(paths[1], rng.choice([1, 2, 3, END], 5000))  # of the same size, but another text
    assert of(files_of(paths), 16, END, tmp_path / "cache").dropped != first.dropped
    (index,) = [path for path in (tmp_path / "cache").glob("*.bin") if path == first._index.file]
    whole = index.read_bytes()
    other = bytearray(whole)
    other[len(whole) // 2] ^= 1
    for damaged in (whole[:-1], whole + b"0", bytes(other), whole[:20], b""):
        index.write_bytes(damaged)
        document_index._mapped.cache_clear()
        with pytest.raises(RequestError, match="no whole index"):
            again.spans(0)


def test_a_large_index_is_hashed_in_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr(document_index, "STRETCH", 64)
    monkeypatch.setattr(document_index, "SAMPLES", 4)
    path = write(tmp_path / "0.bin", np.random.default_rng(5).choice([1, 2, 3, END], 5000))
    packed = Padded(files_of([path]), 16, END, tmp_path / "cache")
    index = packed._index.file
    whole = index.read_bytes()
    index.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])  # in the last stretch
    document_index._mapped.cache_clear()
    with pytest.raises(RequestError, match="no whole index"):
        packed.spans(0)
