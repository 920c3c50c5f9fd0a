import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import Corpus
from olmo_hydra.data.text.prepare import prepare
from olmo_hydra.data.text.sources import SOURCES, Document, Unit


def quiet(line: str) -> None:
    pass


def split_of(corpus: Corpus, domain: str) -> dict[str, str]:
    files = [file for file in corpus.manifest["files"] if file["domain"] == domain]
    return {entry.name: file["split"] for file in files for entry in corpus.entries(file)}


def token_documents(corpus: Corpus, split: str, domain: str) -> list[bytes]:
    """The documents of a domain, cut at the ends in its token files alone."""
    files = sorted((corpus.folder / split / domain).glob("*.npy"))
    tokens = np.concatenate([np.fromfile(file, "<u2") for file in files])
    ends = np.flatnonzero(tokens == 256)
    assert ends[-1] == len(tokens) - 1
    return [part[part != 256].astype(np.uint8).tobytes() for part in np.split(tokens, ends[:-1] + 1)]


def source_of(monkeypatch, name, documents):
    """Registers a source of one piece."""
    monkeypatch.setitem(SOURCES, name, lambda cfg: [Unit("all", documents)])


def test_every_document_is_whole_and_on_one_side(cfg, library, tmp_path):
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    sides: dict[str, list[bytes]] = {"train": [], "heldout": []}
    for split, texts in sides.items():
        for domain in corpus.domains:
            texts += token_documents(corpus, split, domain)
    big_enough = {path.read_bytes() for path in library.glob("**/*.py") if path.stat().st_size >= cfg.min_bytes}
    assert set(sides["train"]) | set(sides["heldout"]) == big_enough
    assert not set(sides["train"]) & set(sides["heldout"])
    assert 0.05 < len(sides["heldout"]) / len(big_enough) < 0.4


def test_manifest_describes_the_files(cfg, library, tmp_path):
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    assert manifest["distributions"]["numpy"] == np.__version__
    for file in manifest["files"]:
        content = (corpus.folder / file["path"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert len(content) == 2 * file["tokens"]
    for domain, summary in manifest["domains"].items():
        for split in ("train", "heldout"):
            documents = token_documents(corpus, split, domain)
            sizes = len(documents), sum(map(len, documents))
            assert summary[split] == {"documents": sizes[0], "bytes": sizes[1], "tokens": sum(sizes)}
    assert manifest["tokenizer"] == {"vocab_size": 257, "eos": 256, "pad": 256}
    assert (
        manifest["overlap"]["domains"]["asyncio"]["documents"] == manifest["domains"]["asyncio"]["heldout"]["documents"]
    )


def test_a_document_keeps_its_side(cfg, library, tmp_path):
    before = prepare(cfg, tmp_path / "a", quiet)
    gone = next(iter(split_of(before, "asyncio")))
    (library / "asyncio" / gone).unlink()
    (library / "asyncio" / "added.py").write_text("# a new document\n" * 20)
    after = split_of(prepare(cfg, tmp_path / "b", quiet), "asyncio")
    assert {name: side for name, side in split_of(before, "asyncio").items() if name != gone} == {
        name: side for name, side in after.items() if name != "added.py"
    }
    other_seed = prepare(dataclasses.replace(cfg, split_seed=1), tmp_path / "c", quiet)
    assert split_of(other_seed, "formats") != split_of(before, "formats")


def test_copies_are_one_document(cfg, library, tmp_path):
    names = sorted(path.name for path in (library / "json").glob("*.py"))
    for name in names:
        shutil.copy(library / "json" / name, library / "asyncio" / f"copy_{name}")
        (library / "email" / f"again_{name}").write_text("\n" + (library / "json" / name).read_text())
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    kept = [name for domain in corpus.domains for name in split_of(corpus, domain)]
    assert {f"copy_{name}" for name in names} <= set(kept)
    assert not {f"json/{name}" for name in names} & set(kept)
    assert corpus.manifest["domains"]["formats"]["left_out"]["duplicate"] == 2 * len(names)


def test_a_copied_passage_stays_in_its_first_document(cfg, tmp_path, monkeypatch):
    def collected():
        short = "A short docstring."
        yield Document("0", short, (short,))  # too short to be a document: it claims nothing
        for i in range(1, 60):
            shared, own = f"Returns the square of {i // 2}.", f"Computes number {i}, exactly."
            yield Document(str(i), "", (short, shared, own, short) if i == 7 else (shared, own))

    source_of(monkeypatch, "collected", collected)
    cfg = dataclasses.replace(cfg, domains={"docs": DomainConfig(source="collected")}, min_bytes=25)
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    texts = [text.decode() for s in ("train", "heldout") for text in token_documents(corpus, s, "docs")]
    passages = [passage for text in texts for passage in text.split("\n\n\n")]
    assert len(passages) == len(set(passages)) == 30 + 59 + 1
    assert corpus.manifest["domains"]["docs"]["left_out"] == {"too short": 1, "duplicate": 29 + 1}


def test_texts_that_differ_only_past_the_cut_are_copies(cfg, tmp_path, monkeypatch):
    def alike():
        for i in range(80):
            yield Document(str(i), f"{i // 2:02}" + "z" * 98 + f"tail {i}")

    source_of(monkeypatch, "alike", alike)
    cfg = dataclasses.replace(cfg, domains={"docs": DomainConfig(source="alike")}, max_bytes=100)
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    texts = [text for s in ("train", "heldout") for text in token_documents(corpus, s, "docs")]
    assert len(texts) == len(set(texts)) == 40
    assert corpus.manifest["domains"]["docs"]["left_out"] == {"duplicate": 40}


def test_short_long_and_impossible_documents(cfg, library, tmp_path, monkeypatch):
    def odd():
        yield Document("short", "x" * 99)
        yield Document("surrogate", "y" * 200 + "\ud800")
        for i in range(40):
            yield Document(f"long{i}", f"{i:02}" + "\u20ac" * 100)

    source_of(monkeypatch, "odd", odd)
    cfg = dataclasses.replace(cfg, domains={"odd": DomainConfig(source="odd")}, max_bytes=100)
    corpus = prepare(cfg, tmp_path / "cache", quiet)
    assert corpus.manifest["domains"]["odd"]["left_out"] == {"too short": 1, "not UTF-8": 1}
    texts = token_documents(corpus, "train", "odd")
    assert {text.decode()[2:] for text in texts} == {"\u20ac" * 32}  # 2 + 32 * 3 = 98 bytes; a 33rd would be torn


def test_prepared_once(cfg, library, tmp_path):
    lines: list[str] = []
    first = prepare(cfg, tmp_path / "cache", lines.append)
    assert any("asyncio" in line and "held out" in line for line in lines)
    shutil.rmtree(library)
    lines.clear()
    again = prepare(dataclasses.replace(cfg, seq_len=128), tmp_path / "cache", lines.append)
    assert (again.folder, again.fingerprint, lines) == (first.folder, first.fingerprint, [])
    with pytest.raises(RequestError, match="no file or folder"):
        prepare(dataclasses.replace(cfg, min_bytes=150), tmp_path / "cache", quiet)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.folder.name]


def test_a_relative_path_is_another_text_in_another_folder(cfg, library, tmp_path, monkeypatch):
    cfg = dataclasses.replace(cfg, domains={"text": DomainConfig(source="files", path=".", pattern="*.py")})
    folders = set()
    for package in ("asyncio", "email"):
        monkeypatch.chdir(library / package)
        folders.add(prepare(cfg, tmp_path / "cache", quiet).folder)
    assert len(folders) == 2


def test_absent_packages_are_told_and_recorded(cfg, tmp_path):
    domains = {"docs": DomainConfig(source="docstrings", packages=["optax", "no-such-distribution"])}
    lines: list[str] = []
    corpus = prepare(dataclasses.replace(cfg, domains=domains), tmp_path, lines.append)
    assert corpus.manifest["domains"]["docs"]["absent"] == ["no-such-distribution"]
    assert sum("no-such-distribution" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        ({"heldout_fraction": 1e-9}, "data.domains.asyncio", "heldout"),
        ({"heldout_fraction": 1 - 1e-9}, "data.domains.asyncio", "train"),
        ({"min_bytes": 10**9}, "data.domains.asyncio", r"\(0 documents in all, \d+ too short\)"),
        ({"name": "a/b"}, "data.name", "names files"),
        ({"domains": {"../up": DomainConfig(source="stdlib")}}, "data.domains", "names files"),
    ],
)
def test_wrong_requests(cfg, tmp_path, change, key, problem):
    with pytest.raises(RequestError, match=problem) as caught:
        prepare(dataclasses.replace(cfg, **change), tmp_path / "cache", quiet)
    assert caught.value.key == key
    left = [path.suffix for path in (tmp_path / "cache").glob("*")]
    # What was read of it stays, where no run looks for a corpus.
    assert left == ([".partial"] if key == "data.domains.asyncio" else [])


def test_the_parts_of_a_corpus_go_if_a_kill_has_left_them_beside_it(cfg, tmp_path):
    corpus = prepare(cfg, tmp_path, quiet)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    partial = corpus.folder.with_name(f"{corpus.folder.name}.partial")
    (partial / "texts").mkdir(parents=True)
    for name in (".lock", "texts/0.text"):
        (partial / name).write_text("left")
    assert prepare(cfg, tmp_path, quiet).fingerprint == corpus.fingerprint
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not partial.exists()


def test_an_unwritable_cache(cfg, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RequestError) as caught:
        prepare(cfg, tmp_path / "file" / "cache", quiet)
    assert caught.value.key == "run.root" and str(tmp_path / "file") in str(caught.value)
