"""Signals through the real command: what is saved, what it exits with, and that the run goes on byte for byte."""

import json
import shutil
import signal
from pathlib import Path
from random import Random
from signal import SIGINT, SIGTERM, SIGUSR1, SIGUSR2

import pytest

from benchmarks.kills.compare import differences
from benchmarks.kills.job import STEPS, Job
from benchmarks.kills.moments import EVALUATES_EVERY, Moment


def when(due) -> Moment:
    return Moment("", lambda view, rng, steps: lambda: due(view), 0)


PREPARING = when(lambda view: view.cached("data/*.partial/texts/*") > 0)
STARTED = when(lambda view: "started" in view.events())
EVALUATING = when(lambda view: view.step() >= EVALUATES_EVERY)
SAVING = when(lambda view: any(int(name.partition(".")[0]) > 20 for name in view.saving()))
UPDATING = when(lambda view: view.step() >= 29)
UPDATING_AGAIN = when(lambda view: view.step() >= 37)
FINISHED = when(lambda view: "finished" in view.events())


def last_event(job: Job) -> dict:
    return json.loads(job.view.lines("events")[-1])


@pytest.mark.slow
def test_a_run_that_is_stopped_in_every_way_is_the_run_that_was_not(tmp_path: Path, never_stopped: Job) -> None:
    job = Job(tmp_path / "run", ("tracking.wandb=disabled",))
    shutil.copytree(never_stopped.root / "cache" / "xla", job.root / "cache" / "xla")

    def stopped(moment: Moment, *numbers: signal.Signals) -> str:
        status, said = job.signalled(moment, *numbers)
        assert status == (130 if numbers[0] is SIGINT else 75), said[-2000:]
        assert "Traceback" not in said and job.faults == [], said[-2000:]
        return said

    def saved(number: signal.Signals) -> int:
        event = last_event(job)
        assert event["event"] == ("interrupted" if number is SIGINT else "preempted")
        assert event["signal"] == number.name and event["seconds"] > 0
        assert event["step"] == job.view.step() == max(job.view.steps()) < STEPS
        return event["step"]

    assert "preempted by SIGTERM at once, with nothing to save" in stopped(PREPARING, SIGTERM)
    assert job.view.run is None and job.view.cached("data/*.partial") == 1
    assert "preempted by SIGUSR1 at once, with nothing to save" in stopped(STARTED, SIGUSR1)
    assert (last_event(job)["event"], last_event(job)["step"]) == ("preempted", 0) and not job.view.steps()
    said = stopped(EVALUATING, SIGUSR2)
    assert f"preempted by SIGUSR2 after update {saved(SIGUSR2)}, which is saved" in said
    stopped(SAVING, SIGTERM, SIGTERM, SIGUSR1)
    assert saved(SIGTERM) > 20
    stopped(UPDATING, SIGINT)
    assert saved(SIGINT) >= 29
    assert "stopped at once" in stopped(UPDATING_AGAIN, SIGINT, SIGINT)
    status, said = job.signalled(FINISHED, SIGTERM)
    assert status == 0 and "report.html" in said, said[-2000:]
    assert "finished" in job.view.events() and job.faults == [] and differences(job, never_stopped) == []
    job.killed_at([], Random(0))
    assert job.faults == [], "it says that it has finished"


@pytest.mark.slow
def test_a_stop_ends_a_sweep(tmp_path: Path) -> None:
    job = Job(tmp_path / "sweep", ("-m", "train.seed=0,1", "tracking.wandb=disabled"))
    status, said = job.signalled(when(lambda view: view.step() >= STEPS // 2), SIGTERM)
    assert status == 75, said[-2000:]
    assert len(list(job.root.glob("nano-kills-*"))) == 1
