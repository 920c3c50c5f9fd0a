"""Checkpoints with spoilt or missing files are refused in one message, whatever is damaged."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.run_weights import RunWeights, path_of
from olmo_hydra.interop.write_run import write_run
from olmo_hydra.tracking.checkpoints import Kind, write_manifest
from olmo_hydra.tracking.run_dir import RunDir

# Each argument is a run to export; asyncio reports what a loop left behind when it is collected.
EXPORT = """
import gc, sys
from olmo_hydra.cli.main import main
for run in sys.argv[1:]:
    print(main(["convert", "to-hf", run, "out"]))
    gc.collect()
"""


@pytest.fixture
def run(in_memory, tmp_path) -> Path:
    write_run(in_memory(), tmp_path / "run", Companions({}), "memory")
    return tmp_path / "run"


def spoil(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 0xFF
    file.write_bytes(content)


def test_damage_is_one_message(run, tmp_path) -> None:
    """In a process of its own: what is printed when objects are collected belongs to stderr too."""
    damages = []
    state = Path("checkpoints", "0", "state")
    for name in ("_METADATA", "manifest.ocdbt", "d", "ocdbt.process_0"):
        damages.append(shutil.copytree(run, tmp_path / f"no {name}"))
        path = damages[-1] / state / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for place in (0.2, 0.5, 0.9):
        damages.append(shutil.copytree(run, tmp_path / f"flipped at {place}"))
        for file in (damages[-1] / state).rglob("d/*"):
            spoil(file, place)
    damages.append(shutil.copytree(run, tmp_path / "flipped manifest"))
    spoil(damages[-1] / state / "manifest.ocdbt", 0.5)
    command = [sys.executable, "-c", EXPORT, *(folder.name for folder in damages)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["2"] * len(damages), done.stderr
    lines = done.stderr.splitlines()
    assert [line[:7] for line in lines] == ["error: ", "  where", "  inste"] * len(damages), done.stderr
    assert all("checkpoint 0 is damaged: state/" in line for line in lines[::3]), done.stderr
    assert [Path(line.partition(":")[2].strip()).parts[0] for line in lines[1::3]] == [it.name for it in damages]
    assert not (tmp_path / "out").exists()


def test_damage_that_the_hashes_do_not_know_of_is_one_message_too(run) -> None:
    """As of a run directory whose manifest was made to fit."""
    place = run / "checkpoints" / "0"
    spoil(place / "state" / "manifest.ocdbt", 0.5)
    write_manifest(place, 0, Kind.permanent)
    with pytest.raises(RequestError, match="its index cannot be read"):
        RunWeights(RunDir(run))


def test_a_damaged_newest_checkpoint_is_not_passed_over_in_silence(run) -> None:
    shutil.copytree(run / "checkpoints" / "0", run / "checkpoints" / "7")
    (run / "checkpoints" / "7" / "manifest.json").unlink()
    with pytest.raises(RequestError, match=r"checkpoint 7 is damaged: manifest.json is missing") as refused:
        RunWeights(RunDir(run))
    assert "RUN@STEP" in str(refused.value) and RunWeights(RunDir(run), 0).step == 0


def test_a_checkpoint_that_is_removed_meanwhile_is_gone(run) -> None:
    weights = RunWeights(RunDir(run))
    assert np.isfinite(weights.read("head.weight")).all()
    shutil.rmtree(run / "checkpoints" / "0")
    with pytest.raises(RequestError, match="checkpoint 0 is gone") as refused:
        weights.read_array(path_of("embedding.weight"))
    assert "checkpoint.keep" in str(refused.value)
