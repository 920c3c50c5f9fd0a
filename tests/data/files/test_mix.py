"""Mix files: what OLMo-core lists, under the names it uses, and where a line is wrong."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files import mix as module
from olmo_hydra.data.files.mix import MIXES, is_named, read_mix, shuffled, spelled
from olmo_hydra.data.files.wanted import Wanted
from tests.components import require_component

INGREDIENT = "OLMo-midtraining-mix-0925-ingredient"
# Files and labels: data.md, section 5.
COUNTS = {
    "OLMo-mix-0625-official": (1016, 65),
    "OLMo-mix-0925-official": (950, 65),
    "OLMo-midtraining-mix-0625-100B": (11933, 201),
    f"{INGREDIENT}1-100B": (12252, 201),
    f"{INGREDIENT}2-100B": (12252, 201),
    "OLMo-longmino-mix-0625": (998, 1),
    "OLMo-longmino-mix-0925": (1000, 1),
    "v3-small-ppl-validation": (11, 11),
    "code-fresh-ppl-validation": (42, 42),
}


def read(file, content: str | bytes, tokenizer="dolma2"):
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_mix(str(file), tokenizer, "data.mix", print)


@pytest.mark.parametrize("name", COUNTS)
def test_mixes_of_olmo_core(name) -> None:
    try:
        files = read_mix(name, "dolma2", "data.mix", print)
    except RequestError as error:
        assert error.instead is not None and "pip download" in error.instead
        require_component("ai2-olmo-core", False, error.instead)
    assert (len(files), len({file.label for file in files})) == COUNTS[name]
    assert len(set(files)) == len(files)  # no repeats
    in_paths = "dolma2-tokenizer" if "ppl" in name else "allenai/dolma3-tokenizer"
    assert all(in_paths in file.path for file in files)


@pytest.mark.parametrize(
    ("mix", "tokenizer", "name"),
    [
        ("c4-ppl-validation", "dolma2", "dolma2-tokenizer"),
        ("OLMo-mix-0625", "dolma2", "allenai/dolma2-tokenizer"),
        ("mine", "dolma2", "allenai/dolma2-tokenizer"),
        ("OLMo-mix-0625-official", "bytes", "bytes"),
        ("mine", "folder/mine.json", "mine"),
    ],
)
def test_the_tokenizer_in_paths(mix, tokenizer, name) -> None:
    assert spelled(mix, tokenizer) == name


def test_a_file_of_ones_own(tmp_path) -> None:
    content = "# comment\n\nweb, a/{TOKENIZER}/1.npy\r\n  code,{TOKENIZER}/2.npy\nweb,a/{TOKENIZER}/1.npy"
    one = Wanted("web", "a/bytes/1.npy")
    assert read(tmp_path / "mine.txt", content, "bytes") == [one, Wanted("code", "bytes/2.npy"), one]
    assert read(tmp_path / "bom.txt", "\ufeffweb,a/{TOKENIZER}/1.npy", "bytes") == [one]  # as Windows writes UTF-8
    official = tmp_path / "OLMo-mix-0925-official.txt"  # a copy of OLMo-core's stays OLMo-core's
    assert read(official, "web,{TOKENIZER}/1.npy")[0].path == "allenai/dolma3-tokenizer/1.npy"
    assert is_named("OLMo-mix-0925-official") and not is_named(str(official))


@pytest.mark.parametrize(
    "line", ["web", "web,a.npy", "web,{TOKENIZER}/a.npy,b", ",{TOKENIZER}/a.npy", "web,", "web;{TOKENIZER}/a.npy"]
)
def test_a_wrong_line_is_named(tmp_path, line) -> None:
    with pytest.raises(RequestError) as caught:
        read(tmp_path / "mine.txt", f"# a\nweb,{{TOKENIZER}}/a.npy\n{line}\n")
    assert f"{tmp_path}/mine.txt, line 3" in str(caught.value) and repr(line) in str(caught.value)


@given(st.text(alphabet="ab,{}TOKENIZR#\n ", max_size=60))
def test_lines_are_files_or_errors(tmp_path_factory, text) -> None:
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    try:
        assert len(read(tmp_path_factory.mktemp("mix") / "mine.txt", text)) == len(lines)
    except RequestError as error:
        assert "mine.txt" in str(error)


def test_what_is_no_mix(tmp_path) -> None:
    with pytest.raises(RequestError, match="lists no files"):
        read(tmp_path / "empty.txt", "# nothing\n")
    with pytest.raises(RequestError, match=r"invalid .* byte.*\n.*latin\.txt"):
        read(tmp_path / "latin.txt", b"caf\xe9,{TOKENIZER}/a.npy")
    with pytest.raises(RequestError, match=r"no such mix\n.*data\.mix=OLMo-mix-0925-official"):
        read_mix("OLMo-mix-0925-oficial", "dolma2", "data.mix", print)


def test_the_installed_package_comes_first(tmp_path, monkeypatch) -> None:
    """By its folder alone: importing it would bring torch."""
    mixes = tmp_path / "olmo_core" / "data" / "mixes"
    mixes.mkdir(parents=True)
    (tmp_path / "olmo_core" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    content = b"web,{TOKENIZER}/a.npy"
    name = "OLMo-mix-0925"
    (mixes / f"{name}.txt").write_bytes(content)
    (mixes / "newer.txt").write_bytes(content)
    assert read_mix("newer", "bytes", "data.mix", print) == [Wanted("web", "bytes/a.npy")]
    asked: list[str] = []

    def member(*arguments) -> Path:
        asked.append(arguments[3])
        return mixes / f"{name}.txt"

    monkeypatch.setattr(module.wheels, "member", member)
    read_mix(name, "bytes", "data.mix", print)  # another text than that release's
    assert asked == [f"olmo_core/data/mixes/{name}.txt"]
    monkeypatch.setitem(MIXES, name, hashlib.sha256(content).hexdigest())
    read_mix(name, "bytes", "data.mix", print)
    assert len(asked) == 1


def test_files_shuffled_as_in_stage_3() -> None:
    files = [Wanted("web", str(i)) for i in range(10)]
    assert [int(file.path) for file in shuffled(files, 123)] == [8, 7, 5, 9, 2, 3, 6, 1, 4, 0]  # data.md, section 7
    assert sorted(shuffled(files, 5)) == files
