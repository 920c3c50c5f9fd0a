"""W&B in trouble, of every kind, with the real client: the run goes on, its record is whole, and W&B gets it later."""

import itertools
import json
import os
import resource
import signal
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from olmo_hydra.tracking import wandb_run
from olmo_hydra.tracking.wandb_run import Opened, WandbRun
from olmo_hydra.tracking.wandb_sync import sync
from tests.tracking.wandb_file import history
from tests.tracking.wandb_machine import NAME, Recorded, expected, kept_id, machine, make, metrics, online, throughput
from tests.tracking.wandb_server import Reply, serve, stop

pytestmark = pytest.mark.usefixtures(machine.__name__)
STEPS = range(1, 31)


@pytest.fixture
def run_dir(tmp_path):
    return make(tmp_path / NAME)


@contextmanager
def silent():
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def services():
    """The client's service processes of this process."""
    found = [Path(stat).read_text().split() for stat in Path("/proc").glob("[0-9]*/stat")]
    return [int(pid) for pid, name, state, parent, *_ in found
            if (name, int(parent)) == ("(wandb-core)", os.getpid()) and state != "Z"]  # fmt: skip


def trained(run_dir, problems, **timeouts):
    run = Recorded(run_dir, problems=problems, **timeouts)
    run.steps(STEPS)
    run.finish()
    return run


def comes_later(run_dir, machine):
    """The record is whole; a server in good order gets each step once, and nothing twice."""
    assert run_dir.rows("metrics") == [metrics(n) for n in STEPS]
    assert run_dir.rows("throughput") == [throughput(n) for n in STEPS]
    with serve() as server:
        online(machine, server.url)
        later = sync(run_dir)
        assert later.outcome == "sent", later
        assert server.rows(kept_id(run_dir)) == expected(STEPS)
        asked = server.calls.count("RunResumeStatus")
        assert sync(run_dir)[:1] == ("has",)
        assert server.calls.count("RunResumeStatus") == asked


@pytest.mark.slow
def test_no_answer_at_the_start(run_dir, machine):
    for number, address in enumerate(("http://127.0.0.1:9", None)):
        run_dir, problems = make(run_dir.path / f"{number}" / NAME), []
        with silent() as never:
            online(machine, address or never)
            run = trained(run_dir, problems, init_timeout=1.0)
        assert len(problems) == 1 and problems[0].endswith("continuing offline")
        assert history(next((run_dir.path / run.wandb.where).glob("*.wandb"))) == expected(STEPS)
        assert not list(run_dir.wandb.glob("run-*"))
        comes_later(run_dir, machine)


@pytest.mark.parametrize(
    "reply",
    [Reply(401), Reply(403), Reply(200), Reply(200, b'{"data": {"model": 7}}'), Reply(200, b"[" * 20_000_000)],
    ids=["401", "403", "html", "other", "huge"],
)
def test_an_answer_that_is_none(run_dir, machine, reply):
    problems = []
    with serve() as server:
        server.intercept = lambda call: reply
        online(machine, server.url)
        trained(run_dir, problems, init_timeout=3.0, finish_timeout=2.0)
    assert len(problems) == 1 and problems[0].endswith("continuing offline")
    comes_later(run_dir, machine)


@pytest.mark.slow
def test_half_of_the_calls_fail(run_dir, machine):
    with serve() as server:
        count = itertools.count()
        server.intercept = lambda call: Reply(500) if next(count) % 2 else None
        online(machine, server.url)
        trained(run_dir, None)
        assert server.rows(kept_id(run_dir)) == expected(STEPS)


@pytest.mark.slow
def test_a_slow_server_does_not_hold_up_the_loop(run_dir, machine):
    with serve() as server:
        server.intercept = lambda call: time.sleep(2) if call == "file_stream" else None
        online(machine, server.url)
        trained(run_dir, None)
        assert server.rows(kept_id(run_dir)) == expected(STEPS)


def test_what_the_server_refuses_in_mid_run_comes_later(run_dir, machine):
    with serve() as server:
        server.intercept = lambda call: Reply(403) if call == "file_stream" else None
        online(machine, server.url)
        trained(run_dir, None)
        assert server.history == {}
    comes_later(run_dir, machine)


def test_a_server_that_dies_delays_the_end_no_longer_than_asked(run_dir, machine):
    problems = []
    with serve() as server:
        online(machine, server.url)
        run = Recorded(run_dir, problems=problems, finish_timeout=2.0)
        run.steps(STEPS[:5])
        stop(server)
        run.steps(STEPS[5:])
        run.finish()
    assert len(problems) == 1 and problems[0].startswith("finish failed")
    comes_later(run_dir, machine)


@pytest.mark.parametrize(
    "lie",
    [
        {"historyTail": json.dumps([json.dumps({"_step": 10**9})])},
        {"historyTail": json.dumps([json.dumps({"_step": "abc"})]), "summaryMetrics": '{"train/step": "abc"}'},
        {"summaryMetrics": '{"train/step": 1000000000}'},
        {"summaryMetrics": '{"_step": 1000000000}'},
        {"summaryMetrics": "7", "historyTail": "{}", "config": "7"},
    ],
    ids=["far", "no number", "far summary", "far count", "other types"],
)
def test_a_server_that_lies_of_a_run(run_dir, machine, lie):
    problems = []
    with serve() as server:
        online(machine, server.url)
        first = Recorded(run_dir)
        first.steps(STEPS[:10])
        first.finish(event="paused")
        server.lie = lie
        second = Recorded(run_dir, restored=10, problems=problems)
        second.steps(STEPS[10:])
        second.finish()
        assert len(problems) == 1 and problems[0].endswith("continuing offline")
        assert sync(run_dir)[:1] == ("failed",)
        assert server.rows(kept_id(run_dir)) == expected(STEPS[:10])
        server.lie = {}
        later = sync(run_dir)
        assert later.outcome == "sent", later
        assert server.rows(kept_id(run_dir)) == expected(STEPS)


@pytest.mark.parametrize(
    "lie",
    [
        {"historyTail": json.dumps([json.dumps({"_step": 20})])},
        {"summaryMetrics": '{"train/step": 20}'},
        {"historyTail": json.dumps([json.dumps({"_step": 20})]), "summaryMetrics": '{"train/step": 20}'},
    ],
    ids=["history", "summary", "both"],
)
def test_a_server_that_has_more_than_the_run_ever_did(run_dir, machine, lie):
    problems = []
    with serve() as server:
        online(machine, server.url)
        first = Recorded(run_dir)
        first.steps(STEPS[:10])
        first.wandb.finish(1)
        server.lie = lie
        second = Recorded(run_dir, restored=10, problems=problems)
        server.lie = {}
        second.steps(STEPS[10:])
        second.finish()
        assert len(problems) == 1 and problems[0].endswith("continuing offline")
        assert "step '20' of this run of 60, which cannot be: it came to 10" in problems[0]
        assert server.rows(kept_id(run_dir)) == expected(STEPS[:10])
        later = sync(run_dir)
        assert later.outcome == "sent", later
        assert server.rows(kept_id(run_dir)) == expected(STEPS)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_service_process_that_is_killed_or_frozen(run_dir, machine, monkeypatch, number):
    monkeypatch.setattr(wandb_run, "OWN_WORK", 3.0)
    problems = []
    with serve() as server:
        online(machine, server.url)
        run = Recorded(run_dir, problems=problems, finish_timeout=1.0)
        run.steps(STEPS[:10])
        (service,) = services()
        os.kill(service, number)
        run.steps(STEPS[10:])
        run.finish()
    assert len(problems) == 1
    assert services() == []
    comes_later(run_dir, machine)


def test_a_folder_that_cannot_be_written(run_dir, machine):
    problems = []
    run_dir.wandb.write_text("in the way")
    with serve() as server:
        online(machine, server.url)
        trained(run_dir, problems)
        assert len(problems) == 1
        refused = sync(run_dir)
    assert refused.outcome == "failed" and str(run_dir.wandb) in refused.why
    run_dir.wandb.unlink()
    comes_later(run_dir, machine)


def test_a_disk_that_is_full_for_the_client(run_dir, machine):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serve() as server:
        online(machine, server.url)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            run = Recorded(run_dir, problems=[], finish_timeout=5.0)  # its service inherits the limit
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        run.steps(STEPS)
        run.finish()
    comes_later(run_dir, machine)


def test_a_client_that_takes_no_more_rows_is_left_alone(run_dir, monkeypatch):
    class Stuck:
        def log(self, row, **_):
            time.sleep(60)

    monkeypatch.setattr(wandb_run, "MAX_WAITING", 3)
    problems = []
    run = WandbRun(run_dir, problems.append, Opened(Stuck(), "x"))
    for n in STEPS:
        run.metrics(metrics(n))
    assert problems == ["log failed: 3 rows wait for the client"]


def test_what_the_client_raises_is_told_once(run_dir):
    class Away:
        def log(self, row, **_):
            raise BrokenPipeError("service is\ngone")

        def finish(self, exit_code):
            raise RuntimeError("still gone")

    problems = []
    run_dir.wandb.mkdir()
    run = WandbRun(run_dir, problems.append, Opened(Away(), "x"))
    for n in (1, 2):
        run.metrics(metrics(n))
    run.finish(1)
    assert problems == ["log failed: BrokenPipeError: service is gone"]


def test_the_thread_that_calls_the_client_begins_with_a_run_and_ends_with_it(run_dir):
    class Fine:
        def log(self, row, **_):
            assert own() != []

        def finish(self, exit_code):
            pass

    def own():
        return [thread for thread in set(threading.enumerate()) - before if thread.name == "wandb"]

    before, problems = set(threading.enumerate()), []
    run_dir.wandb.mkdir()
    WandbRun(run_dir, problems.append)
    run = WandbRun(run_dir, problems.append, Opened(Fine(), "x"))
    assert own() == []
    for n in (1, 2):
        run.metrics(metrics(n))
    (thread,) = own()
    run.finish(0)
    thread.join(60)
    assert not thread.is_alive() and problems == []
