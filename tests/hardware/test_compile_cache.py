"""The compilation cache after a kill: what is torn goes, what is whole is used."""

import subprocess
import sys
from pathlib import Path

import pytest

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
