"""A run that moves to another mesh with its next start is the run of one device."""

from pathlib import Path

import pytest

from tests.end_to_end.divided import assert_same_run, by_processes, trained
from tests.end_to_end.runs import events

MOVED = ["hardware.mesh.data", "hardware.mesh.fsdp", "hardware.mesh.tensor"]


@pytest.mark.slow
def test_from_heads_over_two_devices_to_instances(tmp_path: Path) -> None:
    """Evaluations, baselines and samples too: the one prompt of TINY does not divide over the mesh."""
    alone = trained(tmp_path, "alone", "hardware.devices=1")
    trained(tmp_path, "moved", "hardware.mesh.tensor=2", "run.stop_at=12")
    moved = trained(tmp_path, "moved", *by_processes(1, 2, 2, 1))
    assert_same_run(moved, alone)
    resumed = next(event for event in events(moved) if event["event"] == "resumed")
    axes = {key: change for key, change in resumed["changed"].items() if key in MOVED}
    assert axes == {"hardware.mesh.data": {"was": 1, "is": 2}, "hardware.mesh.tensor": {"was": 2, "is": 1}}
