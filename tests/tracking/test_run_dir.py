"""Reading rows back, and one writer at a time."""

import json
import multiprocessing
import os

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.run_dir import RunDir


def event(kind, step=9):
    return json.dumps({"time": "2026-01-05T09:00:00+00:00", "event": kind, "step": step}) + "\n"


EVENT = event("started")


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def test_a_folder_that_is_not_there_has_no_rows_and_no_writer(tmp_path):
    run_dir = RunDir(tmp_path / "absent")
    assert (run_dir.rows("metrics"), run_dir.finished(), run_dir.writer()) == ([], False, None)
    assert run_dir.state() == ("Not started", None)


@pytest.mark.parametrize("tail", [b"", b'{"step": 3', b'{"step": 3}', b"\0\0\0\n", b"3\n"])
def test_a_torn_last_line_is_no_row(run_dir, tail):
    run_dir.metrics.write_bytes(b'{"step": 1}\n{"step": 2}\n' + tail)
    assert run_dir.rows("metrics") == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("content", [f"{EVENT}{{\n{EVENT}", f"{EVENT}{{\n{{", f"{EVENT}[]\n{EVENT}"])
def test_damage_before_the_last_line_is_an_error_with_file_and_line(run_dir, content):
    run_dir.events.write_text(content)
    with pytest.raises(RequestError, match=r"events\.jsonl:2"):
        run_dir.rows("events")


def test_finished_is_an_event(run_dir):
    run_dir.events.write_text(event("started"))
    assert not run_dir.finished()
    run_dir.events.write_text(event("started") + event("finished"))
    assert run_dir.finished()


@pytest.mark.parametrize(
    ("config", "step", "is_right"),
    [
        *(("train: {steps: 120}", step, step == 120) for step in (0, 60, 119, 120, 121)),
        *((config, 60, True) for config in ("{}", "train: {}", "train: {steps: many}", "- train")),  # none to compare
    ],
)
def test_a_run_finished_after_the_last_step_of_its_config(run_dir, config, step, is_right):
    run_dir.config.write_text(config)
    run_dir.events.write_text(event("started") + event("paused", step=60) + event("finished", step=step))
    if is_right:
        assert run_dir.finished() and run_dir.state() == ("Finished", None)
        return
    for says in (run_dir.finished, run_dir.state):
        with pytest.raises(RequestError, match=f"after update {step}, and its config has 120") as refused:
            says()
        assert refused.value.where == f"{run_dir.events}:3"


@pytest.mark.parametrize(
    ("kinds", "at_rest", "held"),
    [
        ("", "Not started", "Running"),
        ("started checkpoint", "Killed", "Running"),
        ("started paused wandb_unavailable", "Paused", "Paused"),
        ("started interrupted", "Interrupted", "Interrupted"),
        ("started preempted", "Preempted", "Preempted"),
        ("started failed", "Failed", "Failed"),
        ("started failed resumed", "Killed", "Running"),
        ("started paused resumed finished", "Finished", "Finished"),
        ("started finished failed", "Finished", "Finished"),
    ],
)
def test_the_state_follows_from_events_and_lock(run_dir, kinds, at_rest, held):
    run_dir.events.write_text("".join(map(event, kinds.split())))
    assert run_dir.state() == (at_rest, None)
    with run_dir.lock():
        assert run_dir.state() == (held, f"pid {os.getpid()} on host {os.uname().nodename}")


def _hold(path, held, release):
    with RunDir(path).lock():
        held.set()
        release.wait(20)


def test_a_second_process_is_refused_and_told_who_writes(run_dir):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(run_dir.path, held, release))
    process.start()
    assert held.wait(20)
    with pytest.raises(RequestError) as refused, run_dir.lock():
        pass
    assert f"written by pid {process.pid} on host {os.uname().nodename}" in str(refused.value)
    assert "run.tag=" in str(refused.value)
    process.kill()  # the kernel lets go of a dead process's lock
    process.join()
    assert run_dir.writer() is None
    with run_dir.lock():
        assert run_dir.writer() == f"pid {os.getpid()} on host {os.uname().nodename}"
    assert run_dir.writer() is None
