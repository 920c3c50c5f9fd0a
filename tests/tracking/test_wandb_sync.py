"""Uploading later: each step exactly once, whatever W&B has got before, and after kills in the middle."""

import itertools
import json
import subprocess
import sys
import threading

import pytest

from olmo_hydra.tracking.wandb_sync import sync
from tests.tracking.wandb_machine import NAME, Recorded, expected, kept_id, machine, make, online, recorded
from tests.tracking.wandb_server import serve

pytestmark = pytest.mark.usefixtures(machine.__name__)


@pytest.fixture
def run_dir(tmp_path):
    return make(tmp_path / NAME)


def test_a_run_that_went_on_sends_the_rest(run_dir, machine):
    record = recorded(run_dir, range(1, 11))
    record.event("paused", step=10)
    with serve() as server:
        online(machine, server.url)
        assert sync(run_dir) == ("sent", "up to step 10", 10, 10)
        assert server.exit_code[kept_id(run_dir)] == 0
        record = recorded(run_dir, range(11, 13))
        assert sync(run_dir) == ("sent", "up to step 12", 2, 12)
        assert sync(run_dir) == ("has", "all of it", 0, 12)
        assert json.loads(server.buckets[kept_id(run_dir)]["summaryMetrics"])["state"] == "Killed"
        record.event("failed", error="x")
        assert sync(run_dir) == ("has", "up to step 12", 0, 12)
        assert server.exit_code[kept_id(run_dir)] == 1
        assert server.rows(kept_id(run_dir)) == expected(range(1, 13))
        bucket = server.buckets[kept_id(run_dir)]
    assert (bucket["displayName"], bucket["groupName"], bucket["tags"]) == (NAME, "head_dim", ["a"])
    assert json.loads(bucket["config"])["model"]["value"] == {"d_model": 128}


def test_what_a_run_has_sent_itself_is_not_sent_again(run_dir, machine):
    with serve() as server:
        online(machine, server.url)
        run = Recorded(run_dir)
        run.steps(range(1, 8))
        run.finish(event="paused")
        recorded(run_dir, range(8, 11))
        assert sync(run_dir) == ("sent", "up to step 10", 3, 10)
        assert server.rows(kept_id(run_dir)) == expected(range(1, 11))


def test_a_record_that_was_rewound_behind_what_was_sent_sends_what_comes_after(run_dir, machine):
    with serve() as server:
        online(machine, server.url)
        recorded(run_dir, range(1, 11))
        sync(run_dir)
        for path in (run_dir.metrics, run_dir.throughput):
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
        assert sync(run_dir) == ("has", "up to step 10", 0, 10)
        recorded(run_dir, range(6, 13))
        assert sync(run_dir) == ("sent", "up to step 12", 2, 12)
        assert server.rows(kept_id(run_dir)) == expected(range(1, 13))


def test_a_server_that_keeps_nothing_is_not_believed(run_dir, machine):
    recorded(run_dir, range(1, 4))
    with serve() as server:
        online(machine, server.url)
        keep, server.stream = server.stream, lambda run, body: None
        assert sync(run_dir).outcome == "failed"
        server.stream = keep
        assert sync(run_dir).outcome == "sent"
        assert server.rows(kept_id(run_dir)) == expected(range(1, 4))


@pytest.mark.parametrize(
    "lie", [{"historyTail": json.dumps([json.dumps({"_step": 50})])}, {"summaryMetrics": '{"_step": 50}'}]
)
def test_a_server_that_has_more_than_the_run_ever_did_is_not_believed(run_dir, machine, lie):
    recorded(run_dir, range(1, 11))
    with serve() as server:
        online(machine, server.url)
        sync(run_dir)
        recorded(run_dir, range(11, 21))
        confirmed = (run_dir.wandb / "synced.json").read_bytes()
        server.lie = lie
        refused = sync(run_dir)
        assert refused.outcome == "failed" and "step '50' of this run of 60, which cannot be" in refused.why
        assert (run_dir.wandb / "synced.json").read_bytes() == confirmed
        server.lie = {}
        assert sync(run_dir) == ("sent", "up to step 20", 10, 20)
        assert server.rows(kept_id(run_dir)) == expected(range(1, 21))


def test_another_server_is_asked_anew(run_dir, machine):
    recorded(run_dir, range(1, 4))
    for _ in range(2):
        with serve() as server:
            online(machine, server.url)
            assert sync(run_dir).outcome == "sent"
            assert server.rows(kept_id(run_dir)) == expected(range(1, 4))


def test_a_run_that_is_written_or_has_wandb_disabled_is_left_alone(run_dir, machine):
    recorded(run_dir, range(1, 4))
    online(machine, "http://127.0.0.1:9")
    with run_dir.lock():
        assert sync(run_dir)[:2] == ("left", f"is being written by {run_dir.writer()}")
    run_dir.config.write_text(run_dir.config.read_text().replace("wandb: auto", "wandb: disabled"))
    assert sync(run_dir)[:2] == ("left", "tracking.wandb=disabled")


def hanging(keep, passes, stores, hangs, killed):
    """A server that hangs at the request with rows that comes after `passes` others: before it stores it, or after."""
    seen = itertools.count()

    def stream(run, body):
        is_last = "wandb-history.jsonl" in (body.get("files") or {}) and next(seen) >= passes
        if stores or not is_last:
            keep(run, body)
        if is_last:
            hangs.set()
            killed.wait(60)

    return stream


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_every_step_once(run_dir, machine):
    steps = range(1, 2001)
    run_dir.config.write_text(run_dir.config.read_text().replace("steps: 60", "steps: 2000"))
    recorded(run_dir, steps)
    program = (
        "from olmo_hydra.cli.main import main; from olmo_hydra.tracking import wandb_sync; wandb_sync.BATCH = 60000"
    )
    command = [sys.executable, "-c", f"{program}; raise SystemExit(main(['runs', '--sync', '{run_dir.path}']))"]
    with serve() as server:
        online(machine, server.url)
        keep, killed, lengths = server.stream, threading.Event(), []
        for passes, stores in ((1, False), (1, True), (0, False), (0, True)):
            hangs = threading.Event()
            server.stream = hanging(keep, passes, stores, hangs, killed)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert hangs.wait(60)
            process.kill()
            process.wait()
            lengths.append(len(server.history[kept_id(run_dir)]))
        killed.set()
        server.stream = keep
        assert 0 < lengths[0] < lengths[1] == lengths[2] < lengths[3] < len(steps)
        assert subprocess.run(command, capture_output=True).returncode == 0
        assert server.rows(kept_id(run_dir)) == expected(steps)
