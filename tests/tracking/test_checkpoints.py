"""A checkpoint is what was written, or its fault is named: every bit of every file, whatever a stranger puts there."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.tracking import checkpoints
from olmo_hydra.tracking.checkpoints import Damage, Kind, damage, set_aside, whole, write_manifest

FILES = {"state/d/1f": os.urandom(3000), "state/empty": b"", "meta/metadata": b'{"run":"nano"}', "top": b"\n"}


@pytest.fixture
def place(tmp_path) -> Path:
    return made(tmp_path / "checkpoints", 12)


def made(folder: Path, step: int, kind: Kind = Kind.permanent) -> Path:
    place = folder / str(step)
    for name, content in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    write_manifest(place, step, kind)
    return place


def forged(place: Path, **changed) -> None:
    """A manifest with other content that is right in itself, as somebody might write on purpose."""
    said = json.loads((place / "manifest.json").read_text()) | changed
    said.pop("sha256")
    (place / "manifest.json").write_text(json.dumps(said | {"sha256": checkpoints._digest(said)}))


def test_what_was_written_is_whole(place: Path) -> None:
    (place / "commit_success.txt").write_text("written by orbax after the manifest")
    assert damage(place) is None
    (manifest,) = whole(place.parent).values()
    assert manifest.step == 12 and manifest.kind is Kind.permanent
    assert set(manifest.files) == set(FILES) and manifest.size == sum(map(len, FILES.values()))


def test_any_flipped_bit_is_named(place: Path) -> None:
    for name in (*FILES, "manifest.json"):
        content = (place / name).read_bytes()
        every = range(8 * len(content))
        for bit in every if len(content) < 100 else random.sample(every, 200):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            (place / name).write_bytes(changed)
            found = damage(place)
            assert found is not None and (found.step, found.file) == (12, name), f"bit {bit} of {name}"
        (place / name).write_bytes(content)
    assert damage(place) is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_other_manifest_is_damage(tmp_path_factory, data: st.DataObject) -> None:
    place = made(tmp_path_factory.mktemp("run"), 3)
    content = (place / "manifest.json").read_bytes()
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    changed = content[:begin] + data.draw(st.binary(max_size=20)) + content[end:]
    (place / "manifest.json").write_bytes(changed)
    try:
        same = json.loads(changed) == json.loads(content)
    except ValueError:
        same = False
    if not same:
        found = damage(place)
        assert found is not None and found.file == "manifest.json"


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_is_named(place: Path, name: str) -> None:
    (place / name).unlink()
    assert damage(place) == Damage(12, name, "is missing")
    assert not whole(place.parent)


@pytest.mark.parametrize("name", [name for name, content in FILES.items() if content])
def test_a_shortened_file_is_named_without_its_hash(place: Path, name: str) -> None:
    os.truncate(place / name, len(FILES[name]) - 1)
    found = damage(place)
    assert found is not None and found.file == name and "bytes, not" in found.why
    assert not whole(place.parent)


def test_only_what_is_asked_for_is_compared(place: Path) -> None:
    (place / "meta/metadata").write_bytes(b'{"run":"n4no"}')
    assert damage(place, below="state/") is None and damage(place) is not None


def test_a_file_that_is_not_listed_is_ignored(place: Path) -> None:
    (place / "state" / "more").write_bytes(b"x")
    assert damage(place) is None


def test_links_pipes_and_folders_are_no_files(place: Path, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(FILES["top"])
    for make in (lambda path: path.symlink_to(outside), os.mkfifo, os.mkdir):
        (place / "top").unlink()
        make(place / "top")
        found = damage(place)
        assert found is not None and found.file == "top"
        shutil.rmtree(place / "top") if (place / "top").is_dir() else None
        (place / "top").touch()
    (place / "top").write_bytes(FILES["top"])
    shutil.move(place / "state", tmp_path / "state")
    (place / "state").symlink_to(tmp_path / "state")
    found = damage(place)
    assert found is not None and found.file.startswith("state/") and "is a link" in found.why


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../13/top", "state/../top", "./top", "state//empty", "a\0b", "\ud800", ""]
)
def test_paths_that_climb_out_are_refused(place: Path, name: str) -> None:
    forged(place, files={name: {"bytes": 1, "sha256": "0" * 64}})
    found = damage(place)
    assert found is not None and found.file == "manifest.json"
    assert not whole(place.parent)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2}, {"step": 13}, {"step": "twelve"}, {"step": None}, {"kind": "eternal"}, {"kind": []},
        {"files": []}, {"files": {"top": 1}}, {"files": {"top": {"bytes": "many", "sha256": ""}}},
        {"files": {"top": {"bytes": 1}}},
    ],
    ids=str,
)  # fmt: skip
def test_manifests_that_say_something_else_are_damage(place: Path, changed: dict) -> None:
    forged(place, **changed)
    found = damage(place)
    assert found is not None and found.file == "manifest.json"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"[" * 10**6, b'{"sha256": 1' + b"0" * 5000 + b"}", b"\xff\xfe"]
)
def test_manifests_that_are_none_are_damage(place: Path, content: bytes) -> None:
    (place / "manifest.json").write_bytes(content)
    found = damage(place)
    assert found is not None and found.file == "manifest.json"


def test_names_that_are_no_steps_are_no_checkpoints(place: Path) -> None:
    folder = place.parent
    for name in (
        "12.damaged",
        "12.damaged-2",
        "7.orbax-checkpoint-tmp",
        ".removed-3",
        ".removed-3-2",
        "012",
        "١٢",
        "+5",
        "logs",
        "5 ",
    ):
        shutil.copytree(place, folder / name)
    assert checkpoints.steps(folder) == [12] == list(whole(folder))
    assert {path.name for path in checkpoints.remains(folder)} == {
        "7.orbax-checkpoint-tmp",
        ".removed-3",
        ".removed-3-2",
    }
    assert checkpoints.steps(folder / "absent") == [] == checkpoints.remains(folder / "absent")


def test_a_folder_of_checkpoints_may_be_a_link_and_a_checkpoint_may_not(place: Path, tmp_path) -> None:
    (tmp_path / "link").symlink_to(place.parent)
    assert damage(tmp_path / "link" / "12") is None and list(whole(tmp_path / "link")) == [12]
    (place.parent / "13").symlink_to(place)
    found = damage(place.parent / "13")
    assert found is not None and found.file == "" and "is a link" in found.why
    assert list(whole(place.parent)) == [12]


def test_set_aside_deletes_nothing(tmp_path) -> None:
    for number in ("", "-2", "-3"):
        place = made(tmp_path, 5)
        (place / "which").write_text(number)
        aside = set_aside(place, "damaged")
        assert aside.name == f"5.damaged{number}" and not place.exists()
    assert sorted((path / "which").read_text() for path in tmp_path.iterdir()) == ["", "-2", "-3"]


def test_erase_takes_a_link_and_leaves_what_it_names(place: Path, tmp_path) -> None:
    link = tmp_path / "7.orbax-checkpoint-tmp"
    link.symlink_to(place)
    checkpoints.erase(link)
    assert not link.is_symlink() and damage(place) is None
    gone = checkpoints.removed(place)
    assert gone.name == ".removed-12" and not place.exists()
    checkpoints.erase(gone)
    assert not any(place.parent.iterdir())


def test_a_removal_that_left_something_is_not_in_the_way_of_the_next(tmp_path) -> None:
    for name in (".removed-5", ".removed-5-2"):
        gone = checkpoints.removed(made(tmp_path, 5))
        assert gone.name == name and checkpoints.steps(tmp_path) == []
    assert {path.name for path in checkpoints.remains(tmp_path)} == {".removed-5", ".removed-5-2"}
