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

import numpy as np
import pytest

from benchmarks.kills.compare import arrays_of
from tests.end_to_end.runs import command, environment, events, find, last_step, train

STEPS = 24
OPTIONS = (
    *("hardware=cpu_sim", "hardware.devices=4", "hardware.process_timeout=5", "tracking.wandb=disabled"),
    *("train.global_batch=8", f"train.steps={STEPS}", "checkpoint.every=8", "eval.every=12", "hardware.micro_batch=1"),
)
TOLERANCE = 2e-5  # of losses, relative: sums over devices in another order


def by_processes(count: int, *mesh: int) -> list[str]:
    axes = zip(("data", "fsdp", "tensor"), mesh, strict=True)
    return [f"hardware.processes={count}", *(f"hardware.mesh.{axis}={size}" for axis, size in axes)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def trained(root: Path, tag: str, *overrides: str) -> Path:
    done = train(root, *OPTIONS, f"run.tag={tag}", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    directory = find(root, tag)
    assert directory is not None
    return directory


@pytest.fixture(scope="module")
def alone(root: Path) -> Path:
    return trained(root, "alone", *by_processes(1, 2, 2, 1))


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


def test_two_processes_are_one_run(root: Path, alone: Path) -> None:
    directory = trained(root, "two", *by_processes(2, 2, 2, 1))
    assert_same_run(directory, alone)
    assert sorted(path.name for path in (directory / "logs").iterdir()) == ["process_0.log", "process_1.log"]
    (start,) = json.loads((directory / "provenance.json").read_text())["starts"]
    assert start["devices"]["processes"] == 2 and start["devices"]["count"] == 4
    assert [event["event"] for event in events(directory)].count("started") == 1, "process 0 alone writes"


@pytest.mark.slow
def test_a_run_moves_between_processes_and_meshes(root: Path, alone: Path) -> None:
    """1 to 2 to 4 to 1 processes, each on another mesh, and at the end on two devices instead of four."""
    trained(root, "moved", *by_processes(1, 4, 1, 1), "run.stop_at=6")
    trained(root, "moved", *by_processes(2, 1, 2, 2), "run.stop_at=12")
    trained(root, "moved", *by_processes(4, 1, 4, 1), "run.stop_at=18")
    directory = trained(root, "moved", *by_processes(1, 1, 1, 2), "hardware.devices=2")
    assert_same_run(directory, alone)
    starts = json.loads((directory / "provenance.json").read_text())["starts"]
    assert [(start["step"], start["devices"]["processes"]) for start in starts] == [(0, 1), (6, 2), (12, 4), (18, 1)]


@contextmanager
def running(root: Path, tag: str, at_step: int, count: int) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """The run once it has made an update, and the pids of its processes in their order."""
    overrides = [*OPTIONS, *by_processes(count, 2, 2, 1), f"run.tag={tag}", "train.steps=100000", "checkpoint.every=5"]
    process = subprocess.Popen(
        command(root, *overrides),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=root,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while (found := find(root, tag)) is None or last_step(found / "metrics.jsonl") < at_step:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        number = lambda pid: int(re.search(rb"JAX_PROCESS_ID=(\d+)", environ(pid))[1])  # type: ignore[index]  # noqa: E731
        others = {number(int(pid)): int(pid) for pid in children if b"JAX_PROCESS_ID" in environ(int(pid))}
        yield process, [process.pid, *(others[index] for index in range(1, count))]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def gone(pids: list[int]) -> bool:
    """Whether none of them runs any more; a zombie does not."""
    stats = [Path(f"/proc/{pid}/stat") for pid in pids]
    return all(not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z" for stat in stats)


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
    if victim:
        assert (
            status == 1 and f"failed: process {victim} (pid {pids[victim]} on host" in message and "is gone" in message
        )
        directory = find(root, f"killed{victim}")
        assert directory is not None
        ended = events(directory)[-1]
        assert ended["event"] == "failed" and f"pid {pids[victim]}" in ended["error"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_one_that_is_frozen_ends_all(root: Path, victim: int) -> None:
    with running(root, f"frozen{victim}", 3, 4) as (process, pids):
        os.kill(pids[victim], signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while not gone([pid for pid in pids if pid != pids[victim]]):
            assert time.monotonic() < deadline, "the others wait for the frozen one"
            time.sleep(0.05)
        os.kill(pids[victim], signal.SIGCONT)
        while not gone(pids):
            assert time.monotonic() < deadline, "it went on alone"
            time.sleep(0.05)
        message = process.stderr.read() if process.stderr else ""
    assert f"process {victim} (pid {pids[victim]} on host" in message, message[-2000:]
    assert "has given no sign of life for 5 s" in message


@pytest.mark.slow
def test_kills_of_two_processes_change_nothing(root: Path) -> None:
    """On one topology a run that was killed ends with the same bytes."""
    two = by_processes(2, 2, 2, 1)
    unbroken = trained(root, "whole", *two)
    for victim in (1, 0):
        process = subprocess.Popen(command(root, *OPTIONS, *two, "run.tag=broken"), env=environment(), cwd=root)
        while (found := find(root, "broken")) is None or last_step(found / "metrics.jsonl") < 10 - victim:
            assert process.poll() is None
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid if victim == 0 else int(children[0]), signal.SIGKILL)
        assert process.wait(timeout=60)
    directory = trained(root, "broken", *two)
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert (directory / name).read_bytes() == (unbroken / name).read_bytes(), name
    left, right = arrays(directory), arrays(unbroken)
    assert all(leaf.tobytes() == right[name].tobytes() for name, leaf in left.items())


@pytest.mark.parametrize(("number", "status", "event"), [("SIGUSR1", 75, "preempted"), ("SIGTERM", 75, "preempted")])
def test_a_signal_to_one_stops_all_after_one_update(root: Path, number: str, status: int, event: str) -> None:
    tag = f"preempted-{number}"
    with running(root, tag, 4, 2) as (process, pids):
        os.kill(pids[1], getattr(signal, number))
        assert process.wait(timeout=60) == status
        message = process.stderr.read() if process.stderr else ""
    directory = find(root, tag)
    assert directory is not None
    ended = events(directory)[-1]
    assert ended["event"] == event and ended["step"] == last_step(directory / "metrics.jsonl"), message[-2000:]
    assert (directory / "checkpoints" / str(ended["step"])).is_dir() and "the same command continues" in message


def test_the_number_that_was_started_counts(root: Path) -> None:
    started = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0"}
    done = subprocess.run(
        command(root, *OPTIONS, "run.tag=other"), capture_output=True, text=True, env=environment() | started, cwd=root
    )
    assert done.returncode == 2 and "hardware.processes=4" in done.stderr, done.stderr[-2000:]
