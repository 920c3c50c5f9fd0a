import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.data import Instances
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import Corpus, cut, split_point
from olmo_hydra.data.loader import Batches
from olmo_hydra.data.text.prepare import prepare


@pytest.fixture
def corpus(cfg, tmp_path) -> Corpus:
    return prepare(cfg, tmp_path / "cache", lambda line: None)


def batches_of(corpus, instances=Instances.windows):
    tokenizer = corpus.tokenizer
    return Batches(
        corpus.train_files(),
        seq_len=64,
        global_batch=8,
        seed=0,
        instances=instances,
        pack_files=8,
        document_mask=True,
        end=tokenizer.eos,
        pad=tokenizer.pad,
        dtype=tokenizer.dtype,
    )


def test_train_files_feed_the_loader(corpus):
    assert [file.stem for file in corpus.train_files()] == corpus.domains == ["asyncio", "formats"]
    batches = batches_of(corpus)
    tokens = [corpus.manifest["domains"][domain]["train"]["tokens"] for domain in corpus.domains]
    assert len(batches.source) == sum(n // 64 for n in tokens)
    assert batches.source.dropped == sum(n % 64 for n in tokens)


def test_documents_of_a_corpus_are_packed(corpus):
    trained = [e for domain in corpus.domains for e in corpus.manifest["documents"][domain] if e["split"] == "train"]
    batches = batches_of(corpus, Instances.packed)
    assert batches.source.dropped == sum(max(0, entry["tokens"] + 1 - 64) for entry in trained)
    in_instances = len(batches.source) * 64 - batches.source.padding
    assert in_instances + batches.source.dropped == sum(entry["tokens"] + 1 for entry in trained)


def test_heldout_documents_are_the_files(corpus, library):
    documents = corpus.heldout("asyncio", None)
    entries = [entry for entry in corpus.manifest["documents"]["asyncio"] if entry["split"] == "heldout"]
    assert {document.name for document in documents} == {entry["name"] for entry in entries}
    for document in documents:
        raw = (library / "asyncio" / document.name).read_bytes()
        assert document.tokens.astype(np.uint8).tobytes() == raw and document.n_bytes == len(raw)
    assert [document.name for document in documents] != sorted(document.name for document in documents)


def test_heldout_up_to_a_number_of_bytes(corpus):
    everything = corpus.heldout("formats", None)
    sizes = np.cumsum([document.n_bytes for document in everything])
    for i, size in enumerate(sizes):
        for limit in (size, size - 1):  # the last document is cut where the budget ends
            found = corpus.heldout("formats", int(limit))
            assert [document.name for document in found] == [document.name for document in everything[: i + 1]]
            assert sum(document.n_bytes for document in found) == limit
    short = corpus.heldout("formats", None, max_document_bytes=60)
    assert [document.n_bytes for document in short] == [min(document.n_bytes, 60) for document in everything]
    only = corpus.heldout("formats", 50)
    assert [(document.name, document.n_bytes) for document in only] == [(everything[0].name, 50)]
    np.testing.assert_array_equal(only[0].tokens, everything[0].tokens[:50])


@given(st.text(), st.integers(0, 40))
def test_cut_is_the_longest_prefix_of_whole_characters(text, n):
    prefixes = [text[:i] for i in range(len(text) + 1)]
    assert cut(text.encode(), n).decode() == max((p for p in prefixes if len(p.encode()) <= n), key=len)


def test_split_points_are_uniform():
    points = np.sort([split_point(0, "domain", f"file{i}") for i in range(20_000)])
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded with probability 0.001.
    assert np.abs(points - np.arange(20_000) / 20_000).max() < 1.95 / np.sqrt(20_000)
    assert split_point(0, "a", "b/c") != split_point(0, "a/b", "c")


def test_fingerprint_follows_the_text_alone(cfg, corpus, library, tmp_path):
    again = prepare(cfg, tmp_path / "again", lambda line: None)
    assert again.fingerprint == corpus.fingerprint
    path = library / "json" / "decoder.py"
    path.write_text(path.read_text().replace("JSON", "Json", 1))
    assert prepare(cfg, tmp_path / "edited", lambda line: None).fingerprint != corpus.fingerprint


def test_damage_is_found(corpus):
    corpus.verify()
    path = corpus.folder / "train" / "formats.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"\0\0")
    with pytest.raises(RequestError, match=r"train/formats\.bin has changed"):
        Corpus(corpus.folder).verify()
    path.write_bytes(content[:-2])
    with pytest.raises(RequestError, match=f"{len(content)} bytes"):
        Corpus(corpus.folder)
    path.write_bytes(content)
    manifest = corpus.folder / "manifest.json"
    manifest.write_text(json.dumps(corpus.manifest)[:-1])
    with pytest.raises(RequestError, match="manifest"):
        Corpus(corpus.folder)
