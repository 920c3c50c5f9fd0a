import contextlib
import dataclasses
import gzip
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import Corpus, split_point
from olmo_hydra.data.heldout import cut
from olmo_hydra.data.text.prepare import prepare


@pytest.fixture
def corpus(cfg, tmp_path) -> Corpus:
    return prepare(cfg, tmp_path / "cache", lambda line: None)


def entries_of(corpus, split, domain):
    files = [file for file in corpus.manifest["files"] if (file["split"], file["domain"]) == (split, domain)]
    return [entry for file in files for entry in corpus.entries(file)]


def test_train_files_are_the_documents(corpus, library):
    assert [file.label for file in corpus.train_files()] == corpus.domains == ["asyncio", "formats"]
    for file in corpus.train_files():
        tokens = file.tokens()
        assert len(tokens) == corpus.manifest["domains"][file.label]["train"]["tokens"]
        folder = library / "asyncio" if file.label == "asyncio" else library
        for entry in entries_of(corpus, "train", file.label):
            raw = (folder / entry.name).read_bytes()
            assert tokens[entry.start : entry.end].tolist() == [*raw, 256]
            assert entry.more == (str(len(raw)), hashlib.sha256(raw).hexdigest())


def test_the_index_is_read_by_the_rule_of_olmo_core(corpus):
    # olmo_core.data.utils.iter_document_indices: `start_index, end_index, *_ = line.split(",")` of each line.
    for file in corpus.manifest["files"]:
        path = corpus.folder / file["path"]
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as index:
            bounds = [tuple(map(int, line.split(",")[:2])) for line in index]
        ends = np.flatnonzero(np.fromfile(path, "<u2") == 256) + 1
        assert bounds == list(zip([0, *ends[:-1]], ends, strict=True))


def test_heldout_documents_are_the_files(corpus, library):
    documents = corpus.heldout("asyncio", None)
    assert {document.name for document in documents} == {e.name for e in entries_of(corpus, "heldout", "asyncio")}
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


def test_a_token_that_is_none_is_found_when_it_is_evaluated(corpus):
    path = corpus.folder / "heldout" / "asyncio" / "00000.npy"
    tokens = np.fromfile(path, "<u2")
    tokens[3] = 300
    tokens.tofile(path)
    with pytest.raises(RequestError, match="token 300 is past the 257 ids") as refused:
        Corpus(corpus.folder).heldout("asyncio", None)
    assert refused.value.where == f"{path}, at token 3"


def test_damage_is_found(corpus):
    corpus.verify()
    path = corpus.folder / "train" / "formats" / "00000.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"\0\0" + content[-2:])
    with pytest.raises(RequestError, match=r"train/formats/00000\.npy has changed"):
        Corpus(corpus.folder).verify()
    path.write_bytes(content[:-2])
    with pytest.raises(RequestError, match=f"{len(content)} bytes"):
        Corpus(corpus.folder)
    path.write_bytes(content)
    manifest = corpus.folder / "manifest.json"
    for wrong, problem in [("documents", "totals of asyncio"), ("bytes", "totals of asyncio")]:
        changed = json.loads(json.dumps(corpus.manifest))
        changed["domains"]["asyncio"]["train"][wrong] += 1
        manifest.write_text(json.dumps(changed))
        with pytest.raises(RequestError, match=problem):
            Corpus(corpus.folder).verify()
    manifest.write_text(json.dumps(corpus.manifest)[:-1])
    with pytest.raises(RequestError, match="manifest"):
        Corpus(corpus.folder)


def test_the_fingerprint_is_in_the_manifest_and_of_its_files(corpus):
    manifest = corpus.folder / "manifest.json"
    assert json.loads(manifest.read_text())["fingerprint"] == corpus.fingerprint
    changed = corpus.manifest | {"fingerprint": "0" * 64}
    manifest.write_text(json.dumps(changed))
    with pytest.raises(RequestError, match="fingerprint is not that of its files"):
        Corpus(corpus.folder)
    del changed["fingerprint"]  # as before there was one
    manifest.write_text(json.dumps(changed))
    assert Corpus(corpus.folder).fingerprint == corpus.fingerprint


@pytest.mark.parametrize("gone", ["recipe", "domains", "files", "tokenizer", "python", "algorithm", None])
def test_a_manifest_of_something_else(corpus, gone):
    content = {"name": "an app"} if gone is None else {k: v for k, v in corpus.manifest.items() if k != gone}
    for other in (content, [content]):
        (corpus.folder / "manifest.json").write_text(json.dumps(other))
        with pytest.raises(RequestError, match="no prepared corpus") as caught:
            Corpus(corpus.folder)
        assert "rm" not in caught.value.instead


def test_any_damage_of_a_manifest_is_a_request(corpus):
    def places(value, place=()):
        yield place
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield from places(value[key], (*place, key))

    of_files = {key: value for key, value in corpus.manifest.items() if key != "distributions"}
    for *place, last in [place for place in places(of_files) if place]:
        for wrong in (None, "x", 3, [], {}):
            changed = json.loads(json.dumps(corpus.manifest))
            inner = changed
            for key in place:
                inner = inner[key]
            inner[last] = wrong
            (corpus.folder / "manifest.json").write_text(json.dumps(changed))
            with contextlib.suppress(RequestError):
                assert Corpus(corpus.folder).train_files()


def test_a_folder_of_something_else_is_never_to_be_dropped(cfg, corpus, tmp_path):
    (tmp_path / "txt").mkdir()
    with pytest.raises(RequestError, match=r"no prepared corpus: its manifest\.json is not there") as caught:
        Corpus(tmp_path / "txt")
    assert "rm " not in caught.value.instead
    (corpus.folder / "train" / "asyncio" / "00000.npy").write_bytes(b"")
    with pytest.raises(RequestError, match="damaged") as caught:
        Corpus(corpus.folder)
    assert "rm " not in caught.value.instead
    with pytest.raises(RequestError, match="damaged") as caught:
        prepare(cfg, tmp_path / "cache", lambda line: None)
    assert f"rm -r {corpus.folder}" in caught.value.instead


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("tokenizer.json", "{"), ("tokenizer_config.json", '{"eos_token": "<|pad|>"}')],
)
def test_the_tokenizer_of_a_corpus_is_part_of_it(cfg, tmp_path, name, content):
    corpus = prepare(dataclasses.replace(cfg, tokenizer="bpe:300"), tmp_path / "cache", lambda line: None)
    corpus.verify()
    path = corpus.folder / "tokenizer.json"
    whole = path.read_text()
    path.write_text(whole + "\n")
    with pytest.raises(RequestError, match=r"tokenizer\.json has changed"):
        Corpus(corpus.folder).verify()
    path.write_text(whole)
    if content is None:
        path.unlink()
    else:
        (corpus.folder / name).write_text(content)
    with pytest.raises(RequestError, match=r"damaged: (its tokenizer|it has no tokenizer\.json)") as caught:
        Corpus(corpus.folder)
    assert caught.value.key is None


def test_an_index_of_other_documents_is_found(corpus):
    changed = json.loads(json.dumps(corpus.manifest))
    file = changed["files"][0]
    lines = [entry.line() for entry in corpus.entries(file)]
    packed = gzip.compress("".join([lines[0].replace(",", ",1", 1), *lines[1:]]).encode())
    (corpus.folder / file["index"]["path"]).write_bytes(packed)
    file["index"] |= {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    (corpus.folder / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(RequestError, match="not those of its index"):
        Corpus(corpus.folder).verify()
