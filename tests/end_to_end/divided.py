"""Runs divided over devices and processes, and in what they are the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kills.compare import arrays_of
from olmo_hydra.config.mesh import MESH_AXES
from tests.end_to_end.runs import find, train

STEPS = 24
OPTIONS = (
    *("hardware=cpu_sim", "hardware.devices=4", "hardware.process_timeout=5", "tracking.wandb=disabled"),
    *("train.global_batch=8", f"train.steps={STEPS}", "checkpoint.every=8", "eval.every=12", "hardware.micro_batch=1"),
)
TOLERANCE = 2e-5  # of losses, relative: sums over devices in another order


def by_processes(count: int, *mesh: int) -> list[str]:
    axes = zip(MESH_AXES, mesh, strict=True)
    return [f"hardware.processes={count}", *(f"hardware.mesh.{axis}={size}" for axis, size in axes)]


def trained(root: Path, tag: str, *overrides: str) -> Path:
    done = train(root, *OPTIONS, f"run.tag={tag}", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    directory = find(root, tag)
    assert directory is not None
    return directory


def rows(directory: Path, kind: str) -> list[dict]:
    return [json.loads(line) for line in (directory / f"{kind}.jsonl").read_text().splitlines()]


def arrays(directory: Path) -> dict[str, np.ndarray]:
    """Of the last checkpoint: the state, and the ledger's bits."""
    return arrays_of(directory / "checkpoints" / str(STEPS))


def assert_same_run(directory: Path, alone: Path) -> None:
    """The same data exactly, the same numbers to the tolerance."""
    ours, theirs = rows(directory, "metrics"), rows(alone, "metrics")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == list(range(1, STEPS + 1))
    for our, their in zip(ours, theirs, strict=True):
        data = {key for key in our if key.startswith("data/")} | {"tokens", "lr", "skipped"}
        assert {key: our[key] for key in data} == {key: their[key] for key in data}
        assert our["loss"] == pytest.approx(their["loss"], rel=TOLERANCE), our["step"]
    for our, their in zip(rows(directory, "evals"), rows(alone, "evals"), strict=True):
        assert (our["step"], our["suite"]) == (their["step"], their["suite"])
        if "bits_per_byte" in our:
            assert our["bits_per_byte"] == pytest.approx(their["bits_per_byte"], rel=TOLERANCE)
    left, right = arrays(directory), arrays(alone)
    assert left.keys() == right.keys() and np.array_equal(left["words"], right["words"]), "other instances were read"
    for name, leaf in left.items():
        assert leaf.dtype == right[name].dtype and leaf.shape == right[name].shape, name
        if name.startswith("params/"):
            assert np.abs(leaf.astype(np.float64) - right[name]).max() < 1e-3 * np.abs(right[name]).max(), name
