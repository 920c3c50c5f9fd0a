import gzip
import json
import os
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources import Document, LeftOut, Origin, huggingface, records, units
from olmo_hydra.data.text.sources.files import grouped
from olmo_hydra.data.text.sources.registry import UNIT_BYTES, Piece
from olmo_hydra.data.text.sources.streams import opened
from tests.data.text.reading import documents


def read(path, **settings):
    """Documents and what is left out, each by name."""
    found = list(documents("mine", DomainConfig(source=settings.pop("source", "files"), path=str(path), **settings)))
    texts = {item.name: item.text for item in found if isinstance(item, Document)}
    return texts, {item.name: item.reason for item in found if isinstance(item, LeftOut)}


def refused(path, **settings):
    with pytest.raises(RequestError) as caught:
        read(path, **settings)
    return caught.value


def compressed(raw, suffix):
    return {"": raw, ".gz": gzip.compress(raw), ".zst": zstandard.compress(raw)}[suffix]


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values).encode()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_lines(tmp_path, suffix):
    rows = [{"text": "one"}, {"id": "b", "text": "tw\u00f6"}, {"id": 7, "text": "three", "other": [1]}]
    raw = lines(*rows).replace(b"\n", b"\r\n", 1) + b"\n" + b'{"text": "four"}'  # a blank line, no end of the last
    (tmp_path / f"a.jsonl{suffix}").write_bytes(compressed(raw, suffix))
    name = f"a.jsonl{suffix}"
    expected = {f"{name}:1": "one", f"{name}#b": "tw\u00f6", f"{name}#7": "three", f"{name}:5": "four"}
    assert read(tmp_path) == read(tmp_path / name) == (expected, {})


def test_broken_records_are_left_out_and_counted(tmp_path):
    rows = [
        b'{"text": "good"}',
        b'{"text": "cut',
        b'["text"]',
        b'{"body": "x"}',
        b'{"text": 3}',
        b'{"text": null}',
        b'{"text": "nul \\u0000"}',
        b'{"text": "lone \\ud800"}',
        b'{"text": "caf\xe9"}',
        b"[" * 100_000,
        b'\xef\xbb\xbf{"text": "after a byte order mark"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
    texts, left_out = read(tmp_path)
    assert texts == {"a.jsonl:1": "good", "a.jsonl:11": "after a byte order mark"}
    json_object, absent, no_text = "not a JSON object", "the field text is not there", "the field text is no text"
    reasons = [json_object, json_object, absent, no_text, absent, "binary", "not UTF-8", "not UTF-8", json_object]
    assert left_out == {f"a.jsonl:{line}": reason for line, reason in enumerate(reasons, 2)}


def test_text_in_other_fields(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines({"doc": {"parts": [["a", "b"], ["c"]]}, "flat.name": "flat"}))
    assert read(tmp_path, text_field="doc.parts")[0] == {"a.jsonl:1": "a\n\nb\n\nc"}
    assert read(tmp_path, text_field="flat.name")[0] == {"a.jsonl:1": "flat"}


def test_a_file_without_any_text_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + lines({"body": "x", "title": "y"}, {"body": "z"}))
    error = refused(tmp_path)
    assert error.key == "data.domains.mine.text_field" and error.where.endswith("a.jsonl:2")
    assert "body, title" in str(error)
    (tmp_path / "a.jsonl").write_bytes(b"not JSON\n")
    assert "not a JSON object" in str(refused(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert read(tmp_path) == ({}, {"a.jsonl": "empty"})


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_off(tmp_path, suffix):
    raw = lines(*({"text": f"{i} " + "%x" % (i**200)} for i in range(2000)))
    whole = compressed(raw, suffix)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    texts, left_out = read(tmp_path)
    assert 500 < len(texts) < 1500 and left_out == {f"a.jsonl{suffix}:{len(texts) + 1}": "damaged"}
    path.write_bytes(b"not compressed")
    error = refused(tmp_path)
    assert f"record 1: not compressed, as {suffix} says" in str(error) and error.key == "data.domains.mine.path"
    (tmp_path / f"b.txt{suffix}").write_bytes(whole[:-9])
    assert read(tmp_path, pattern="b.*") == ({}, {f"b.txt{suffix}": "damaged"})
    (tmp_path / f"b.txt{suffix}").write_bytes(b"plain")
    assert read(tmp_path, pattern="b.*") == ({}, {f"b.txt{suffix}": f"not compressed, as {suffix} says"})


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(0, 40))
def test_zstandard_frames_and_cuts(tmp_path_factory, frames, cut):
    path = tmp_path_factory.mktemp("frames") / "a.zst"
    whole = [zstandard.compress(frame) for frame in frames]
    raw = b"".join(whole)
    path.write_bytes(raw[: max(0, len(raw) - cut)])
    ends = [len(b"".join(whole[:i])) for i in range(len(whole) + 1)]
    with opened(path) as stream:
        if max(0, len(raw) - cut) in ends:
            assert stream.read() == b"".join(frames[: ends.index(max(0, len(raw) - cut))])
        else:
            with pytest.raises(EOFError):
                stream.read()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=60), st.sampled_from([1, 16, 64]), st.sampled_from([3, 20, 97])
)
def test_long_files_in_pieces(tmp_path_factory, sizes, block, unit):
    path = tmp_path_factory.mktemp("pieces") / "a.jsonl"
    path.write_bytes(lines(*({"text": "x" * size} for size in sizes)) + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "UNIT_BYTES", unit)
        patch.setattr(records, "BLOCK", block)
        pieces = list(records.json_lines_pieces("a", path, path.stat().st_size, "text"))
    whole = list(records.json_lines("a", path, "text"))
    assert [item for piece in pieces for item in piece.read()] == whole
    assert sum(piece.size for piece in pieces) == path.stat().st_size
    assert len({piece.name for piece in pieces}) == len(pieces)
    assert all(piece.size <= unit + block + 80 for piece in pieces)


def test_units_are_even_and_depend_on_sizes_alone():
    sizes = [5, 5, 5, 0, 20, 1, 1, 7, 2]
    pieces = [Piece(str(i), size * UNIT_BYTES // 10, tuple) for i, size in enumerate(sizes)]
    assert [unit.name for unit in grouped(pieces)] == ["0", "2", "4", "5", "8"]


def test_a_tree_of_code(tmp_path):
    for name, content in {
        "src/a.py": b"x = 1\n",
        "src/b.json": b'{"text": "code is text"}',
        "src/deep/Makefile": b"all:\n",
        "src/data.py": b"x = '" + b"y" * 2000 + b"'\n",
        "src/table.py": b"\n".join(b"%0150d" % i for i in range(9)),
        "src/bin.py": b"x\0",
        "src/latin.c": b"caf\xe9",
        "src/picture.png": b"png",
        ".git/hook.py": b"x",
        "node_modules/m/index.js": b"x",
        "src/__pycache__/a.py": b"x",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "src" / "link.py").symlink_to("a.py")
    texts, left_out = read(tmp_path, source="code")
    assert list(texts) == ["src/a.py", "src/b.json", "src/deep/Makefile"]
    reasons = {"src/data.py": "long lines", "src/table.py": "long lines"}
    reasons |= {"src/bin.py": "binary", "src/latin.c": "not UTF-8"}
    reasons |= {"src/picture.png": "another ending", "src/link.py": "link"}
    reasons |= dict.fromkeys((".git", "node_modules", "src/__pycache__"), "folder not entered")
    assert left_out == reasons


@pytest.mark.parametrize(
    ("source", "pattern"), [("files", None), ("files", "*.txt"), ("code", None), ("code", "*.txt")]
)
def test_what_is_no_file_is_counted_and_never_opened(tmp_path, source, pattern):
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a.txt", "a.py"):
        (root / name).write_text("text")
    for name in ("fifo.txt", "fifo.py"):
        os.mkfifo(root / name)
    (root / "broken.txt").symlink_to("absent")
    (root / "loop.txt").symlink_to("loop.txt")
    (root / "folder.txt").symlink_to(tmp_path / "elsewhere")
    texts, left_out = read(root, source=source, pattern=pattern)
    assert texts.keys() == {"a.py" if source == "code" and pattern is None else "a.txt"}
    links = dict.fromkeys(("broken.txt", "loop.txt", "folder.txt"), "link")
    assert links | {"fifo.txt": "no regular file"} == {
        name: reason for name, reason in left_out.items() if name.endswith(".txt") and name != "a.txt"
    }
    assert left_out.get("fifo.py") == (None if pattern else "no regular file")


def test_endings_say_what_a_folder_holds(tmp_path):
    (tmp_path / ".hidden").mkdir()
    for name in (".hidden/a.txt", "picture.png", "a.md"):
        (tmp_path / name).write_text("*text*")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "c.jsonl").write_bytes(lines({"text": "record"}))
    (tmp_path / "d.html").write_text("<p>page</p>")
    texts, left_out = read(tmp_path)
    assert texts == {"a.md": "*text*", "b.txt.gz": "packed", "c.jsonl:1": "record", "d.html": "page"}
    assert left_out == {".hidden/a.txt": "hidden", "picture.png": "another ending"}
    assert read(tmp_path, pattern="*.html", format="text")[0] == {"d.html": "<p>page</p>"}


def test_the_state_of_a_piece_is_that_of_its_files(tmp_path):
    for name in ("a.txt", "b.txt", ".c.txt"):
        (tmp_path / name).write_text(name)
    cfg = DomainConfig(source="files", path=str(tmp_path))
    before = [unit.state() for unit in units("mine", cfg)]
    assert [unit.state() for unit in units("mine", cfg)] == before
    (tmp_path / "b.txt").write_text("B.TXT")  # as long as before
    left_out, text = [unit.state() for unit in units("mine", cfg)]
    assert left_out == before[0] and text != before[1]
    (tmp_path / "d.png").write_text("a picture")
    assert next(unit.state() for unit in units("mine", cfg)) != left_out


def test_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"text {i}" for i in range(10)]
    texts[3], texts[8] = None, "nul \0"
    table = pyarrow.table({"text": texts, "id": [f"k{i}" for i in range(10)], "body": texts[::-1], "n": range(10)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    expected = {f"a.parquet#k{i}": f"text {i}" for i in range(10) if i not in (3, 8)}
    assert read(tmp_path) == (expected, {"a.parquet#k3": "the field text is not there", "a.parquet#k8": "binary"})
    parquet.write_table(table.drop(["id"]), tmp_path / "a.parquet", row_group_size=4)
    assert list(read(tmp_path, text_field="body")[0]) == [f"a.parquet:{i}" for i in (1, 3, 4, 5, 6, 8, 9, 10)]
    assert refused(tmp_path, text_field="title").instead == "text, body, n"
    assert "no text" in str(refused(tmp_path, text_field="n"))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-20])
    assert "cannot be read as Parquet" in str(refused(tmp_path))


def test_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"id": ["a", "b", "c"], "text": ["one", None, "three"]})
    rows.save_to_disk(str(tmp_path / "one"))
    expected = {"one#a": "one", "one#c": "three"}, {"one#b": "the field text is not there"}
    assert read(tmp_path / "one", source="huggingface") == expected
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(str(tmp_path / "two"))
    assert refused(tmp_path / "two", source="huggingface").instead.endswith("two:test")
    assert read(f"{tmp_path / 'two'}:test", source="huggingface")[0] == {"two#a": "one", "two#c": "three"}
    assert "no column" in str(refused(tmp_path / "one", source="huggingface", text_field="body"))
    assert "cannot be opened" in str(refused(f"{tmp_path / 'two'}:dev", source="huggingface"))
    cfg = DomainConfig(source="huggingface", path=str(tmp_path / "one"))
    (unit,) = units("mine", cfg)
    fingerprint = datasets.load_from_disk(str(tmp_path / "one"))._fingerprint
    assert unit.origin == Origin("huggingface", str(tmp_path / "one"), fingerprint, "")
    rows.add_item({"id": "d", "text": "four"}).save_to_disk(str(tmp_path / "three"))
    assert units("mine", replace(cfg, path=str(tmp_path / "three")))[0].state()[2:] != unit.state()[2:]
    assert len(list(pickle.loads(pickle.dumps(units("mine", cfg)))[0].read())) == 3


def test_the_revision_of_a_data_set_that_was_fetched():
    files = {f"hf://datasets/of/some@0a1b2c/data/{part}.parquet": {"num_bytes": 9} for part in ("train", "test")}
    table = SimpleNamespace(info=SimpleNamespace(download_checksums=files), _fingerprint="fe12")
    assert huggingface._version(table) == "0a1b2c fe12"
    table.info.download_checksums = None
    assert huggingface._version(table) == "fe12"
