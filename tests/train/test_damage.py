"""Damaged checkpoints are named before anything is restored, the one before is offered, and nothing is lost."""

import os
import pickle
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import OnCorrupt
from olmo_hydra.tracking.checkpoints import UNLISTED, Damage
from olmo_hydra.train.checkpoint import Checkpoints, Choice
from olmo_hydra.train.state import State
from tests.train.tiny import saving

META = {"run": "nano-1"}


def state(step: int) -> State:
    return State({"weight": jnp.full((8, 4), step, jnp.float32)}, {"mu": jnp.arange(6.0) * step})


def save(checkpoints: Checkpoints, step: int, **how: bool) -> None:
    checkpoints.save(step, state(step), META, {"position": step}, jnp.zeros(4, jnp.uint32), **how)
    checkpoints.wait(lambda kind, **fields: None)


def restored(checkpoints: Checkpoints, step: int) -> State:
    like = state(step)
    abstract = jax.eval_shape(lambda: like)
    return checkpoints.restore(step, abstract, jax.tree.map(lambda leaf: leaf.sharding, like), META)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Checkpoints 2 and 4."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(folder, saving())
    for step in (2, 4):
        save(checkpoints, step)
    checkpoints.close()
    return folder


def files(place: Path) -> list[str]:
    """Every file that a restore may read."""
    names = [path.relative_to(place).as_posix() for path in sorted(place.rglob("*")) if path.is_file()]
    return [name for name in names if name not in UNLISTED - {"manifest.json"}]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [flip, Path.unlink, lambda path: os.truncate(path, 0)], ids=["flip", "gone", "empty"])
def test_whatever_file_is_damaged_it_is_named_and_the_one_before_is_offered(saved: Path, tmp_path, spoil) -> None:
    folder = tmp_path / "checkpoints"
    for name in files(saved / "4"):
        if not (saved / "4" / name).stat().st_size:
            continue
        shutil.copytree(saved, folder)
        spoil(folder / "4" / name)
        refusing = Checkpoints(folder, saving())
        with pytest.raises(RequestError, match="checkpoint 4 is damaged") as refused:
            refusing.choose()
        assert refused.value.where == str(folder / "4" / name)
        assert "checkpoint.on_corrupt=previous, which continues from update 2" in str(refused.value)
        refusing.close()
        going_on = Checkpoints(folder, saving(on_corrupt=OnCorrupt.previous))
        choice = going_on.choose()
        assert choice.step == 2 and [(fault.step, fault.file) for fault in choice.damaged] == [(4, name)]
        going_on.close()
        shutil.rmtree(folder)


def test_going_back_sets_aside_and_saves_again(saved: Path, tmp_path) -> None:
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    flip(folder / "4" / "manifest.json")
    checkpoints = Checkpoints(folder, saving(on_corrupt=OnCorrupt.previous))
    (fault,) = checkpoints.choose().damaged
    assert checkpoints.set_aside(fault.step) == folder / "4.damaged"
    assert np.array_equal(restored(checkpoints, 2).opt_state["mu"], state(2).opt_state["mu"])
    save(checkpoints, 4)
    assert checkpoints.choose() == Choice(4, ())
    checkpoints.close()
    assert sorted(path.name for path in folder.iterdir()) == ["2", "4", "4.damaged"]


def test_where_none_is_whole_the_run_begins_anew_only_if_told_to(saved: Path, tmp_path) -> None:
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    for step in (2, 4):
        (folder / str(step) / "manifest.json").unlink()
    refusing = Checkpoints(folder, saving())
    with pytest.raises(RequestError, match=r"checkpoint 2 is damaged: manifest\.json is missing") as refused:
        refusing.choose()
    assert "begins the run anew" in str(refused.value)
    refusing.close()
    told = Checkpoints(folder, saving(on_corrupt=OnCorrupt.previous))
    assert told.choose() == Choice(None, tuple(Damage(step, "manifest.json", "is missing") for step in (4, 2)))
    told.close()


def test_a_killed_save_and_a_killed_removal_leave_no_checkpoint(saved: Path, tmp_path) -> None:
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    (folder / "4").rename(folder / "4.orbax-checkpoint-tmp")
    shutil.copytree(folder / "2", folder / ".removed-1")
    checkpoints = Checkpoints(folder, saving())
    assert checkpoints.choose() == Choice(2, ())
    checkpoints.clean()
    checkpoints.close()
    assert [path.name for path in folder.iterdir()] == ["2"]


def test_only_the_writer_cleans(saved: Path, tmp_path) -> None:
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    (folder / "4").rename(folder / "4.orbax-checkpoint-tmp")
    other = Checkpoints(folder, saving(), writes=False)
    other.clean()
    other.close()
    assert (folder / "4.orbax-checkpoint-tmp").is_dir()


def test_what_a_checkpoint_says_of_itself_decides_not_todays_config(tmp_path) -> None:
    checkpoints = Checkpoints(tmp_path, saving(every=10, ephemeral_every=2, fixed_steps=[3]))
    for step in (2, 3, 4, 10):
        save(checkpoints, step, permanent=step in (3, 10))
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, saving(every=7, keep=1))
    checkpoints.clean()
    save(checkpoints, 14)
    checkpoints.settle(lambda kind, **fields: None)
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [3, 14]


def test_a_file_system_without_space_is_asked_before_a_save(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, saving())
    save(checkpoints, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 900, 100))
    with pytest.raises(RequestError, match=r"checkpoint 2 needs 184 bytes and 100 are free") as refused:
        save(checkpoints, 2)
    assert refused.value.where == str(tmp_path)
    assert checkpoints.choose() == Choice(1, ()) and [path.name for path in tmp_path.iterdir()] == ["1"]
    checkpoints.close()


def test_a_save_that_fails_under_way_leaves_the_last_whole_one(tmp_path) -> None:
    """A limit on the size of files fails a write as a full quota does."""
    checkpoints = Checkpoints(tmp_path, saving())
    save(checkpoints, 1)
    rng = np.random.default_rng(0)
    large = State({"weight": jnp.asarray(rng.normal(size=100_000), jnp.float32)}, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(RequestError, match="checkpoint 2 was not saved, those before it are whole: File too large"):
            checkpoints.save(2, large, META, {}, jnp.zeros(4, jnp.uint32))
            checkpoints.wait(lambda kind, **fields: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoints.choose() == Choice(1, ())
    checkpoints.close()


class Executed:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("executed",)


def test_no_pickle_is_read(saved: Path, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one beside the files nor one in place of each that orbax rewrites and no manifest lists."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    for name in ("state/state.pkl", "state/weight", "_CHECKPOINT_METADATA", "commit_success.txt"):
        (folder / "4" / name).write_bytes(pickle.dumps(Executed()))
    checkpoints = Checkpoints(folder, saving())
    assert checkpoints.choose() == Choice(4, ())
    assert np.array_equal(restored(checkpoints, 4).params["weight"], state(4).params["weight"])
    (folder / "4" / "state" / "checkpoint").write_bytes(pickle.dumps(Executed()))  # a name orbax looks for: msgpack
    with pytest.raises(RequestError, match="checkpoint of update 4 cannot be restored: ExtraData"):
        restored(checkpoints, 4)
    checkpoints.close()
    assert not Path("executed").exists()
