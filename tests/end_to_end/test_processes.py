"""Several processes on this machine: the numbers of one, whoever is killed ends all, and a run moves between them."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.kills.tiny import command, environment
from olmo_hydra.tracking.run_dir import RunDir
from tests.end_to_end.divided import OPTIONS, arrays, assert_same_run, by_processes, trained
from tests.end_to_end.runs import events, find, last_step, train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(root: Path) -> Path:
    return trained(root, "alone", *by_processes(1, 2, 2, 1, 1))


@pytest.mark.slow
def test_two_processes_are_one_run(root: Path, alone: Path) -> None:
    directory = trained(root, "two", *by_processes(2, 2, 2, 1, 1))
    assert_same_run(directory, alone)
    assert sorted(path.name for path in (directory / "logs").iterdir()) == ["process_0.log", "process_1.log"]
    (start,) = json.loads((directory / "provenance.json").read_text())["starts"]
    assert start["devices"]["processes"] == 2 and start["devices"]["count"] == 4
    assert [event["event"] for event in events(directory)].count("started") == 1, "process 0 alone writes"


@pytest.mark.slow
def test_a_run_moves_between_processes_and_meshes(root: Path, alone: Path) -> None:
    """1 to 2 to 4 to 1 processes, each on another mesh, and at the end on two devices instead of four."""
    trained(root, "moved", *by_processes(1, 4, 1, 1, 1), "run.stop_at=6")
    trained(root, "moved", *by_processes(2, 2, 1, 2, 1), "run.stop_at=12")
    trained(root, "moved", *by_processes(4, 1, 4, 1, 1), "run.stop_at=18")
    directory = trained(root, "moved", *by_processes(1, 1, 1, 1, 2), "hardware.devices=2")
    assert_same_run(directory, alone)
    starts = json.loads((directory / "provenance.json").read_text())["starts"]
    assert [(start["step"], start["devices"]["processes"]) for start in starts] == [(0, 1), (6, 2), (12, 4), (18, 1)]


@contextmanager
def running(root: Path, tag: str, at_step: int, count: int) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """The run once it has made an update, and the pids of its processes in their order."""
    overrides = [
        *OPTIONS,
        *by_processes(count, 2, 2, 1, 1),
        f"run.tag={tag}",
        "train.steps=100000",
        "checkpoint.every=5",
    ]
    process = subprocess.Popen(
        command(root, *overrides),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=root,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while (found := find(root, tag)) is None or last_step(found / "metrics.jsonl") < at_step:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        number = lambda pid: int(re.search(rb"JAX_PROCESS_ID=(\d+)", environ(pid))[1])  # type: ignore[index]  # noqa: E731
        others = {number(pid): pid for pid in children(process.pid) if b"JAX_PROCESS_ID" in environ(pid)}
        yield process, [process.pid, *(others[index] for index in range(1, count))]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def gone(pids: list[int]) -> bool:
    """Whether none of them runs any more; a zombie does not."""
    stats = [Path(f"/proc/{pid}/stat") for pid in pids]
    return all(not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z" for stat in stats)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_is_killed_ends_all(root: Path, victim: int) -> None:
    with running(root, f"killed{victim}", 6, 2) as (process, pids):
        os.kill(pids[victim], signal.SIGKILL)
        status = process.wait(timeout=30)
        message = process.stderr.read() if process.stderr else ""
        deadline = time.monotonic() + 30
        while not gone(pids):
            assert time.monotonic() < deadline, "a process has outlived the run"
            time.sleep(0.05)
    directory = find(root, f"killed{victim}")
    assert directory is not None
    if victim == 0:  # the kernel kills what it has started with it, so that nobody is left to say so
        assert status == -signal.SIGKILL and RunDir(directory).state()[0] == "Killed"
    else:
        said = f"failed: process {victim} (pid {pids[victim]} on host"
        assert status == 1 and said in message and "is gone" in message, message[-2000:]
        ended = events(directory)[-1]
        assert ended["event"] == "failed" and f"pid {pids[victim]}" in ended["error"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_one_that_is_frozen_ends_all(root: Path, victim: int) -> None:
    with running(root, f"frozen{victim}", 3, 4) as (process, pids):
        os.kill(pids[victim], signal.SIGSTOP)
        assert process.wait(timeout=60) == (1 if victim else -signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not gone(pids):
            assert time.monotonic() < deadline, "somebody is left"
            time.sleep(0.05)
        message = process.stderr.read() if process.stderr else ""
    assert f"process {victim} (pid {pids[victim]} on host" in message, message[-2000:]
    assert "has given no sign of life for 5 s" in message


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_lost_after_the_end_changes_nothing(root: Path, number: signal.Signals) -> None:
    tag = f"ended{number.value}"
    with running(root, tag, 2, 2) as (process, pids):
        os.kill(pids[0], signal.SIGTERM)
        directory = find(root, tag)
        assert directory is not None
        while events(directory)[-1]["event"] != "preempted":
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(pids[1], number)
        assert process.wait(timeout=30) == 75  # JAX waits for 100 s, and then ends the process with 134
        message = process.stderr.read() if process.stderr else ""
    assert message.count("preempted by SIGTERM after update") == 1 and "fatal" not in message, message[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_missing_from_the_start_ends_the_command(root: Path, number: signal.Signals) -> None:
    overrides = [*OPTIONS, *by_processes(2, 2, 2, 1, 1), f"run.tag=missing{number.value}"]
    process = subprocess.Popen(
        command(root, *overrides), stderr=subprocess.PIPE, text=True, env=environment(), cwd=root
    )
    try:
        # Stopped before it runs its program, a child would hold up the one that starts it.
        while not (started := [pid for pid in children(process.pid) if b"JAX_PROCESS_ID=1" in environ(pid)]):
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(started[0], number)
        assert process.wait(timeout=90) == 1
        assert process.stderr is not None and f"failed: process 1 (pid {started[0]})" in process.stderr.read()
        assert gone(started)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_kills_of_two_processes_change_nothing(root: Path) -> None:
    """On one topology a run that was killed ends with the same bytes."""
    two = by_processes(2, 2, 2, 1, 1)
    unbroken = trained(root, "whole", *two)
    for victim in (1, 0):
        process = subprocess.Popen(command(root, *OPTIONS, *two, "run.tag=broken"), env=environment(), cwd=root)
        while (found := find(root, "broken")) is None or last_step(found / "metrics.jsonl") < 10 - victim:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid if victim == 0 else children(process.pid)[0], signal.SIGKILL)
        assert process.wait(timeout=60)
    directory = trained(root, "broken", *two)
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert (directory / name).read_bytes() == (unbroken / name).read_bytes(), name
    left, right = arrays(directory), arrays(unbroken)
    assert all(leaf.tobytes() == right[name].tobytes() for name, leaf in left.items())


@pytest.mark.parametrize(
    ("number", "status", "event"),
    [
        pytest.param("SIGUSR1", 75, "preempted", marks=pytest.mark.slow),
        pytest.param("SIGTERM", 75, "preempted", marks=pytest.mark.slow),
        pytest.param("SIGINT", 130, "interrupted", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_stops_all_after_one_update(root: Path, number: str, status: int, event: str) -> None:
    tag = f"preempted-{number}"
    with running(root, tag, 4, 2) as (process, pids):
        os.kill(pids[1], getattr(signal, number))
        assert process.wait(timeout=120) == status
        message = process.stderr.read() if process.stderr else ""
    directory = find(root, tag)
    assert directory is not None
    ended = events(directory)[-1]
    assert (ended["event"], ended["signal"]) == (event, number), message[-2000:]
    assert ended["step"] == last_step(directory / "metrics.jsonl"), message[-2000:]
    assert (directory / "checkpoints" / str(ended["step"])).is_dir() and "the same command continues" in message


def test_the_number_that_was_started_counts(root: Path) -> None:
    started = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0"}
    done = subprocess.run(
        command(root, *OPTIONS, "run.tag=other"), capture_output=True, text=True, env=environment() | started, cwd=root
    )
    assert done.returncode == 2 and "hardware.processes=4" in done.stderr, done.stderr[-2000:]


@pytest.mark.slow
def test_two_processes_that_blow_up_leave_the_page_on_it(root: Path) -> None:
    blown = ("optim=adamw", "optim.lr=1e20", "optim.clip_norm=null", "run.tag=blown")
    done = train(root, *OPTIONS, *by_processes(2, 2, 2, 1, 1), *blown)
    assert done.returncode == 1 and "updates in a row were skipped" in done.stderr, done.stderr[-2000:]
    directory = find(root, "blown")
    assert directory is not None
    assert all((directory / name).is_file() for name in ("skipped.json", "skipped.html", "report.html"))
    ended = events(directory)[-1]
    assert ended["event"] == "failed" and ended["first"] == 2
    assert last_step(directory / "metrics.jsonl") == ended["last"]
