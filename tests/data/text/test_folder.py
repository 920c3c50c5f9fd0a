"""`prepare_into`: a corpus in a folder of one's own, from odd text and with every setting."""

import dataclasses
import gzip
import json
import tracemalloc

import numpy as np
import pytest

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import Corpus
from olmo_hydra.data.text import parts
from olmo_hydra.data.text.build import Settings
from olmo_hydra.data.text.prepare import prepare_into
from olmo_hydra.data.tokenizers import bpe
from tests.data.text.tokenizers import WORDS_OF_TRAINING

SETTINGS = Settings(workers=1)


def make(cfg, folder, settings=SETTINGS, **change):
    corpus = prepare_into(dataclasses.replace(cfg, **change), folder, settings, lambda line: None)
    corpus.verify()
    return corpus


def texts_of(corpus, split):
    """Every document of a side, decoded, by name."""
    found = {}
    for file in corpus.manifest["files"]:
        tokens = np.fromfile(corpus.folder / file["path"], corpus.tokenizer.dtype)
        if file["split"] == split:
            found |= {e.name: corpus.tokenizer.decode(tokens[e.start : e.end]) for e in corpus.entries(file)}
    return found


@pytest.fixture
def odd(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin1.txt").write_bytes("é".encode("latin-1") * 300)
    (folder / "line.txt").write_text("x" * 3_000_000)
    (folder / "ends.txt").write_text("one<|endoftext|>two<|pad|><|endoftext|> " + "of the theme " * 300)
    for i in range(30):
        (folder / f"text{i}.txt").write_text(f"{i} is the theme\n" * 20)
    return {"odd": DomainConfig(source="files", path=str(folder))}


def test_odd_files(cfg, odd, tmp_path):
    corpus = make(cfg, tmp_path / "out", domains=odd, tokenizer="bpe:300", min_bytes=1)
    summary = corpus.manifest["domains"]["odd"]
    assert summary["left_out"] == {"too short": 1, "not UTF-8": 1}
    texts = texts_of(corpus, "train") | texts_of(corpus, "heldout")
    assert len(texts) == 32
    assert texts == {name: (tmp_path / "odd" / name).read_text() for name in texts}
    assert summary["special_tokens"] == {"<|endoftext|>": 2, "<|pad|>": 1}
    assert corpus.tokenizer.vocab_size == 300 and corpus.fingerprint


def test_domains_for_one_side_alone(cfg, odd, tmp_path):
    own = {"only": dataclasses.replace(odd["odd"], heldout_fraction=1.0), "asyncio": cfg.domains["asyncio"]}
    own["asyncio"].heldout_fraction = 0.0
    corpus = make(cfg, tmp_path / "out", domains=own)
    assert {file.label for file in corpus.train_files()} == {"asyncio"}
    held_out = corpus.heldout_documents(cfg)
    assert list(held_out) == ["only"] and len(held_out["only"]) == 32
    assert corpus.manifest["overlap"]["domains"]["only"]["documents"] == 32
    assert not list((tmp_path / "out" / "train").glob("only*"))


def test_the_overlap_of_a_held_out_domain_is_counted(cfg, library, tmp_path):
    copied = (library / "asyncio" / "events.py").read_text().splitlines()[100:140]
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "copy.txt").write_text("\n".join(["A text of its own."] * 20 + copied))
    (tmp_path / "held" / "own.txt").write_text(" ".join(f"word{i}" for i in range(400)))
    domains = {**cfg.domains, "held": DomainConfig(source="files", path=str(tmp_path / "held"), heldout_fraction=1.0)}
    found = make(cfg, tmp_path / "out", domains=domains, heldout_fraction=0.0).manifest["overlap"]["domains"]["held"]
    assert (found["documents"], found["documents_shared"]) == (2, 1)
    assert list(found["by_domain"]) == ["asyncio"] and found["examples"][0]["document"] == "copy.txt"
    assert make(cfg, tmp_path / "no", dataclasses.replace(SETTINGS, overlap=False)).manifest["overlap"] is None


def test_copies_stay_on_one_side_if_asked_for(cfg, odd, tmp_path):
    for i in range(30):
        (tmp_path / "odd" / f"again{i}.txt").write_text(f"{i} is the theme\n" * 20)
    dropped = make(cfg, tmp_path / "dropped", domains=odd)
    kept = make(cfg, tmp_path / "kept", dataclasses.replace(SETTINGS, keep_duplicates=True), domains=odd)
    assert dropped.manifest["domains"]["odd"]["left_out"]["duplicate"] == 30
    summary = kept.manifest["domains"]["odd"]
    assert 0 < summary["copies_kept"] == 30 - summary["left_out"]["duplicate"] < 30
    assert not set(texts_of(kept, "train").values()) & set(texts_of(kept, "heldout").values())
    assert set(texts_of(dropped, "train").values()) <= set(texts_of(kept, "train").values())


def test_files_of_bounded_size_hold_whole_documents(cfg, tmp_path):
    whole = make(cfg, tmp_path / "whole")
    corpus = make(cfg, tmp_path / "out", dataclasses.replace(SETTINGS, shard_tokens=20_000))
    for domain in corpus.domains:
        files = [file for file in corpus.manifest["files"] if (file["domain"], file["split"]) == (domain, "train")]
        assert len(files) > 3
        assert all(file["tokens"] <= 20_000 or file["documents"] == 1 for file in files)
        joined = b"".join((corpus.folder / file["path"]).read_bytes() for file in files)
        assert joined == (whole.folder / "train" / domain / "00000.npy").read_bytes()


def test_a_tokenizer_of_ones_own(cfg, tmp_path):
    bpe.train(WORDS_OF_TRAINING, 270).save(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    corpus = make(cfg, tmp_path / "out", tokenizer=path)
    assert corpus.manifest["tokenizer"]["vocab_size"] == 270
    bpe.train(WORDS_OF_TRAINING[:1], 268).save(tmp_path)
    with pytest.raises(RequestError, match="other sources or settings"):
        make(cfg, tmp_path / "out", tokenizer=path)
    (tmp_path / "tokenizer.json").unlink()
    assert len(Corpus(tmp_path / "out").heldout("asyncio", None)) > 0  # the corpus has its own
    with pytest.raises(RequestError, match="no such file"):
        make(cfg, tmp_path / "out", tokenizer=path)
    bpe.train(WORDS_OF_TRAINING, 270).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t"}))
    with pytest.raises(RequestError, match="other sources or settings"):
        make(cfg, tmp_path / "out", tokenizer=path)
    with pytest.raises(RequestError, match="an ordinary token"):
        make(cfg, tmp_path / "other", tokenizer=path)


@pytest.mark.parametrize("change", ["written", "gone", "new"])
def test_a_text_that_has_changed_since(cfg, library, tmp_path, change):
    fingerprint = make(cfg, tmp_path / "out").fingerprint
    assert make(cfg, tmp_path / "out").fingerprint == fingerprint
    file = library / "asyncio" / ("another.py" if change == "new" else "events.py")
    if change == "gone":
        file.unlink()
    else:
        file.write_text((library / "asyncio" / "events.py").read_text().replace("event", "EVENT"))
    with pytest.raises(RequestError, match="written since") as caught:
        make(cfg, tmp_path / "out")
    assert f"rm -r {tmp_path / 'out'}" in caught.value.instead
    assert Corpus(tmp_path / "out").fingerprint == fingerprint != make(cfg, tmp_path / "new").fingerprint


def test_a_folder_inside_the_text(cfg, odd, tmp_path):
    with pytest.raises(RequestError, match="which is read") as caught:
        make(cfg, tmp_path / "odd" / "deep" / "out", domains=odd)
    assert caught.value.key == "--out"


def test_a_file_that_cannot_be_read_costs_no_other_one(cfg, odd, tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    bad = tmp_path / "rows" / "bad.jsonl"
    bad.write_text("no JSON")
    domains = {**odd, "rows": DomainConfig(source="files", path=str(tmp_path / "rows"), heldout_fraction=0.0)}
    with pytest.raises(RequestError, match="no text at all"):
        make(cfg, tmp_path / "out", domains=domains)
    bad.write_text('{"text": "' + "a text of its own, and long enough to be kept " * 9 + '"}')
    read_before, names = parts.read, []

    def read(part, unit):
        names.append(unit.name)
        read_before(part, unit)

    monkeypatch.setattr(parts, "read", read)
    corpus = make(cfg, tmp_path / "out", domains=domains)
    assert names == ["bad.jsonl"]
    assert texts_of(corpus, "train")["bad.jsonl:1"].startswith("a text of its own")
    assert not (tmp_path / "out.partial").exists()


def test_a_folder_of_somebody_else_is_left_alone(cfg, tmp_path):
    theirs = tmp_path / "out.partial"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(RequestError, match="something else") as caught:
        make(cfg, tmp_path / "out")
    assert caught.value.where == str(theirs) and (theirs / "thesis.tex").read_text() == "years of work"
    (theirs / ".lock").touch()  # what came while we prepared
    make(cfg, tmp_path / "out")
    assert [path.name for path in theirs.iterdir()] == ["thesis.tex"]


def test_memory_does_not_grow_with_a_piece(cfg, tmp_path, monkeypatch):
    row = json.dumps({"text": "a line of a text that goes on and on\n" * 250})
    with gzip.open(tmp_path / "long.jsonl.gz", "wt") as file:
        file.writelines(f'{row[:-2]}{i}"}}\n' for i in range(2_000))
    domains = {"long": DomainConfig(source="files", path=str(tmp_path / "long.jsonl.gz"))}
    monkeypatch.setattr(parts, "BATCH", 1 << 16)
    tracemalloc.start()
    corpus = prepare_into(
        dataclasses.replace(cfg, domains=domains), tmp_path / "out", dataclasses.replace(SETTINGS, overlap=False), print
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    train = corpus.manifest["domains"]["long"]["train"]
    assert train["bytes"] > 14e6 and peak < 4e6


def test_what_is_in_the_way(cfg, tmp_path):
    make(cfg, tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    with pytest.raises(RequestError, match="other sources or settings"):
        make(cfg, tmp_path / "out", split_seed=7)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    with pytest.raises(RequestError, match="is no corpus"):
        make(cfg, tmp_path)


def test_a_full_disk_loses_nothing_that_is_finished(cfg, tmp_path, monkeypatch):
    from olmo_hydra.data.text import shards

    def full(self, content):
        raise OSError(28, "No space left on device", self._name)

    with monkeypatch.context() as patch:
        patch.setattr(shards._Hashed, "write", full)
        with pytest.raises(RequestError, match=r"No space left on device[^\n]*train/asyncio") as caught:
            make(cfg, tmp_path / "out")
    assert caught.value.key == "--out" and not (tmp_path / "out").exists()
    assert list(tmp_path.glob("out.partial/*.parts/*.encoded.json"))
    monkeypatch.setattr("olmo_hydra.data.text.parts.encode", lambda *_: pytest.fail("tokenized again"))
    make(cfg, tmp_path / "out")
