"""kill -9 anywhere: `python -m benchmarks.kills`, short."""

from pathlib import Path

import pytest

from benchmarks.kills.campaign import campaign
from benchmarks.kills.job import Job


@pytest.mark.slow
def test_runs_that_are_killed_are_the_run_that_was_not(tmp_path: Path, never_stopped: Job) -> None:
    tally = campaign(tmp_path, never_stopped, kills=15, seed=5)
    assert tally.faults == {}
    assert tally.kills.total() >= 15 and len({moment for moment, _ in tally.kills}) > 5
