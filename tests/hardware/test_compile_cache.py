"""The compilation cache after a kill: what is torn goes, what is whole is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from olmo_hydra.hardware.compile_cache import remove_torn

COMPILES = """
import sys, jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x_B: (x_B * x_B).sum())(jax.numpy.arange(8.0)).block_until_ready()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xla")
    assert compiles(folder) == ""
    return folder


def compiles(folder: Path) -> str:
    """What a process that compiles says on standard error."""
    command = [sys.executable, "-c", COMPILES, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*-cache")}


def test_torn_entries_go_and_are_made_again(filled: Path) -> None:
    whole = entries(filled)
    assert len(whole) >= 2
    torn = dict(zip(whole, (0, 1, 100), strict=False))  # bytes that were written
    for name, size in torn.items():
        (filled / name).write_bytes(whole[name][:size])
    assert "Error reading persistent compilation cache" in compiles(filled), "JAX repairs none"
    assert all((filled / name).stat().st_size == size for name, size in torn.items()), "JAX repairs none"
    remove_torn(filled)
    assert entries(filled) == {name: content for name, content in whole.items() if name not in torn}
    assert compiles(filled) == "" and entries(filled).keys() == whole.keys()


def test_a_cache_that_is_not_there(tmp_path: Path) -> None:
    remove_torn(tmp_path / "nowhere")


def entry(folder: Path, name: str, content: bytes, second: int) -> Path:
    path = folder / f"{name}-cache"
    path.write_bytes(content)
    os.utime(path, (second, second))
    return path


def test_an_entry_is_read_at_one_start_only(tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor().compress(bytes(1000))
    older, newest = entry(tmp_path, "older", whole, 10), entry(tmp_path, "newest", whole, 20)
    remove_torn(tmp_path)
    for path, second in ((older, 10), (newest, 20)):
        entry(tmp_path, path.name.removesuffix("-cache"), whole[:5], second)
    later = entry(tmp_path, "later", whole[:5], 30)
    remove_torn(tmp_path)
    assert older.exists() and not newest.exists() and not later.exists(), "in the second of the last look is a new one"


def test_an_entry_that_cannot_be_read_stops_no_start(tmp_path: Path) -> None:
    (tmp_path / "folder-cache").mkdir()  # as a file of another user, which root could read
    (tmp_path / "link-cache").symlink_to("link-cache")
    torn = entry(tmp_path, "torn", b"", 10)
    remove_torn(tmp_path)
    assert not torn.exists() and len(list(tmp_path.glob("*-cache"))) == 2
