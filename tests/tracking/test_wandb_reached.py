"""How far a run ever came, whatever a kill and a rewind have left of it."""

import pytest

from olmo_hydra.tracking.goodput import KEYS
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.wandb_reached import keep_reached, reached
from tests.tracking.wandb_machine import NAME, Recorded, expected, kept_id, machine, make, online, recorded
from tests.tracking.wandb_server import serve


@pytest.fixture
def run_dir(tmp_path):
    return make(tmp_path / NAME)


def test_rows_events_times_and_what_was_sent_tell_it(run_dir):
    assert reached(run_dir) == 0
    record = recorded(run_dir, range(1, 4))
    assert reached(run_dir) == 3
    record.event("checkpoint", step=4)
    assert reached(run_dir) == 4
    record.time({"time": "2026-01-01T00:00:00+00:00", "start": 1, "chips": 1, "step": 5, **dict.fromkeys(KEYS, 0.0)})
    assert reached(run_dir) == 5
    run_dir.wandb.mkdir()
    keep_reached(run_dir, 6)
    Record(run_dir).rewind(2)
    assert reached(run_dir) == 6


def test_what_a_crash_of_the_machine_leaves_is_no_step(run_dir):
    run_dir.wandb.mkdir()
    for step in (1, 2):
        keep_reached(run_dir, step)
    with (run_dir.wandb / "reached").open("ab") as file:
        file.write(b"\0\0\0")
    keep_reached(run_dir, 3)
    assert reached(run_dir) == 2
    keep_reached(run_dir, 4)
    assert reached(run_dir) == 4


@pytest.mark.usefixtures(machine.__name__)
def test_a_killed_start_may_have_sent_more_than_its_record_has_after_the_rewind(run_dir, machine):
    with serve() as server:
        online(machine, server.url)
        first = Recorded(run_dir)
        first.steps(range(1, 21))
        first.wandb.finish(1)  # the client's service outlives its process, and sends what it has; no event tells of it
        again = Recorded(run_dir, restored=10)
        again.steps(range(11, 26))
        again.finish()
        assert server.rows(kept_id(run_dir)) == expected(range(1, 26))
