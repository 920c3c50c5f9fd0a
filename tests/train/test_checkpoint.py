"""Saved is what is restored, on any layout, and a checkpoint of another run is refused."""

import errno
import itertools
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.futures import future

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking import checkpoints as on_disk
from olmo_hydra.train.checkpoint import Checkpoints, Choice
from olmo_hydra.train.state import State
from tests.train.tiny import program, saving, updated

META = {"run": "nano-1"}
RECORD = {"position": {"batches": 3, "epoch": 1}, "ledger": {"tokens": {"web": 2**40}}}
WORDS_W = np.arange(2048, dtype=np.uint32)


def save(checkpoints: Checkpoints, step: int, state: State) -> None:
    checkpoints.save(step, state, META, RECORD, jnp.asarray(WORDS_W))


def ignore(kind: str, **fields) -> None:
    pass


def test_restore_on_another_layout_is_byte_identical(batch, tmp_path) -> None:
    _, state, _ = updated(("optim.mu_dtype=bfloat16",), batch)
    events = []
    saved = Checkpoints(tmp_path / "checkpoints", saving())
    assert saved.choose() == Choice(None, ())
    save(saved, 3, state)
    saved.wait(lambda kind, **fields: events.append((kind, fields)))
    saved.close()
    assert events == [("checkpoint", {"step": 3})]
    arrays = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + WORDS_W.nbytes
    files = sum(file.stat().st_size for file in (tmp_path / "checkpoints" / "3").rglob("*") if file.is_file())
    assert arrays < files  # moments of one update are mostly alike: compressed, they would take much less

    _, other = program("hardware.mesh.data=4", "hardware.mesh.fsdp=2", "optim.mu_dtype=bfloat16")
    found = Checkpoints(tmp_path / "checkpoints", saving())
    assert found.choose() == Choice(3, ())
    restored = found.restore(3, other.abstract, other.shardings, META)
    for left, right in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert left.dtype == right.dtype and np.asarray(left).tobytes() == np.asarray(right).tobytes()
    assert jax.tree.map(lambda leaf: leaf.sharding, restored) == other.shardings
    assert found.record(3) == RECORD
    shared = NamedSharding(other.mesh, PartitionSpec(other.mesh.axis_names))
    words_W = found.words(3, jax.ShapeDtypeStruct(WORDS_W.shape, WORDS_W.dtype, sharding=shared))
    assert words_W.sharding == shared and (np.asarray(words_W) == WORDS_W).all()
    found.close()


def test_another_run_is_refused_with_the_difference(batch, tmp_path) -> None:
    _, state, _ = updated((), batch)
    _, made = program()
    checkpoints = Checkpoints(tmp_path, saving())
    save(checkpoints, 1, state)
    checkpoints.wait(ignore)
    with pytest.raises(RequestError, match=r"run was 'nano-1' and is 'nano-2'") as refused:
        checkpoints.restore(1, made.abstract, made.shardings, {"run": "nano-2"})
    assert "run.tag" in str(refused.value)
    checkpoints.close()


@pytest.mark.parametrize(("keep", "left"), [(None, [1, 2, 3, 4]), (2, [3, 4])])
def test_nothing_is_deleted_unless_the_config_says_so(batch, tmp_path, keep, left) -> None:
    _, state, _ = updated((), batch)
    checkpoints = Checkpoints(tmp_path, saving(keep=keep))
    for step in (1, 2, 3, 4):
        checkpoints.wait(ignore)
        save(checkpoints, step, state)
    checkpoints.settle(ignore)
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == left


def test_a_start_with_nothing_left_to_save_removes_what_a_killed_one_could_not(batch, tmp_path) -> None:
    _, state, _ = updated((), batch)
    for step in (1, 2, 3):
        checkpoints = Checkpoints(tmp_path, saving(keep=None))
        save(checkpoints, step, state)
        checkpoints.wait(ignore)
        checkpoints.close()
    checkpoints = Checkpoints(tmp_path, saving(keep=2))
    checkpoints.settle(ignore)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    checkpoints.close()


def test_a_saved_state_survives_being_given_away(batch, tmp_path) -> None:
    """The next step takes the state's memory while the save still runs in the background."""
    _, state, _ = updated((), batch)
    expected = [np.array(leaf) for leaf in jax.tree.leaves(state)]
    checkpoints = Checkpoints(tmp_path, saving())
    overwrite = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf.dtype.type(1), state), donate_argnums=0)
    save(checkpoints, 1, state)
    for _ in range(20):
        state = overwrite(state)
    checkpoints.wait(ignore)
    _, made = program()
    restored = checkpoints.restore(1, made.abstract, made.shardings, META)
    checkpoints.close()
    for left, right in zip(expected, jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_checkpoint_that_somebody_removed_is_missed_by_nobody(batch, tmp_path) -> None:
    _, state, _ = updated((), batch)
    events = []
    checkpoints = Checkpoints(tmp_path, saving(keep=1))
    for step in (1, 2):
        save(checkpoints, step, state)
        checkpoints.wait(lambda kind, **fields: events.append((kind, fields)))
        shutil.rmtree(tmp_path / str(step))
    save(checkpoints, 3, state)
    checkpoints.settle(lambda kind, **fields: events.append((kind, fields)))
    checkpoints.close()
    assert events == [("checkpoint", {"step": step}) for step in (1, 2, 3)]
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_checkpoint_that_cannot_be_removed_ends_no_run(batch, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(place):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    _, state, _ = updated((), batch)
    events = []
    checkpoints = Checkpoints(tmp_path, saving(keep=1))
    monkeypatch.setattr(on_disk, "removed", busy)
    for step in (1, 2, 3):
        save(checkpoints, step, state)
        checkpoints.wait(lambda kind, **fields: events.append((kind, fields)))
    checkpoints.close()
    kept = [fields for kind, fields in events if kind == "checkpoint_not_removed"]
    assert kept == [{"step": step, "why": "Device or resource busy"} for step in (1, 2)]
    assert on_disk.steps(tmp_path) == [1, 2, 3]


def test_a_stop_does_not_wait_until_old_checkpoints_are_removed(batch, tmp_path, monkeypatch) -> None:
    stopped, removed = threading.Event(), threading.Event()

    def erase(path: Path) -> None:
        assert stopped.wait(60)
        removed.set()

    _, state, _ = updated((), batch)
    checkpoints = Checkpoints(tmp_path, saving(keep=1))
    monkeypatch.setattr(on_disk, "erase", erase)
    for step in (1, 2):
        save(checkpoints, step, state)
        checkpoints.wait(ignore)
    checkpoints.close()
    assert not removed.is_set() and {path.name for path in tmp_path.iterdir()} == {".removed-1", "2"}
    stopped.set()
    assert removed.wait(60)


def test_a_save_may_take_hours(batch, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the clock by which orbax sees how long it takes: half an hour between two looks."""
    now = itertools.count(step=1800)
    monkeypatch.setattr(future, "time", SimpleNamespace(time=lambda: float(next(now))))
    _, state, _ = updated((), batch)
    checkpoints = Checkpoints(tmp_path, saving())
    save(checkpoints, 1, state)
    checkpoints.wait(ignore)
    monkeypatch.undo()
    assert next(now) > 1800 and checkpoints.choose() == Choice(1, ())
    checkpoints.close()


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: no"),
        ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."),
        ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"),
        MemoryError(),
    ],
)
def test_what_machine_or_processes_lack_in_a_restore_is_no_fault_of_the_checkpoint(
    batch, tmp_path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def lacking(*args, **kwargs):
        raise error

    checkpoints = Checkpoints(tmp_path, saving())
    monkeypatch.setattr(checkpoints._orbax, "restore", lacking)
    with pytest.raises(type(error)) as raised:
        checkpoints.record(1)
    assert raised.value is error
    checkpoints.close()


def test_a_state_of_another_structure_is_not_called_damage(batch, tmp_path) -> None:
    _, state, _ = updated((), batch)
    checkpoints = Checkpoints(tmp_path, saving())
    save(checkpoints, 1, state)
    checkpoints.wait(ignore)
    _, other = program("model.n_layers=2", "model.window_pattern=[full]")
    with pytest.raises(RequestError, match="checkpoint of update 1 cannot be restored: ") as refused:
        checkpoints.restore(1, other.abstract, other.shardings, META)
    assert refused.value.instead is None and refused.value.where == str(tmp_path / "1" / "state")
    checkpoints.close()
