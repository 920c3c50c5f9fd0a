"""A run that moves to another mesh with its next start is the run of one device."""

from pathlib import Path

import pytest

from olmo_hydra.config.mesh import MESH_AXES
from tests.end_to_end.divided import assert_same_run, by_processes, trained
from tests.end_to_end.runs import events

MOVED = [f"hardware.mesh.{axis}" for axis in MESH_AXES]


@pytest.mark.slow
def test_from_heads_to_instances_to_positions(tmp_path: Path) -> None:
    """Evaluations, baselines and samples too: the one prompt of TINY does not divide over the mesh."""
    alone = trained(tmp_path, "alone", "hardware.devices=1")
    trained(tmp_path, "moved", "hardware.mesh.tensor=2", "run.stop_at=8")
    trained(tmp_path, "moved", *by_processes(1, 2, 2, 1, 1), "run.stop_at=16")
    moved = trained(tmp_path, "moved", "hardware.mesh.context=4")
    assert_same_run(moved, alone)
    resumed = [event["changed"] for event in events(moved) if event["event"] == "resumed"]
    axes = [{key: (change["was"], change["is"]) for key, change in one.items() if key in MOVED} for one in resumed]
    assert axes == [
        {"hardware.mesh.data": (1, 2), "hardware.mesh.tensor": (2, 1)},
        {"hardware.mesh.fsdp": (2, 1), "hardware.mesh.context": (1, 4), "hardware.mesh.tensor": (2, 1)},
    ]
