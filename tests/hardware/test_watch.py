"""Processes that really wait for one another, of which one is killed, frozen or fails."""

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from olmo_hydra.hardware.environment import Place

COUNT = 3
TIMEOUT = 5.0


@contextlib.contextmanager
def waiting(how: str = "for ever") -> Iterator[list[subprocess.Popen]]:
    """Three processes of which all have said that they are ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = str(Path(__file__).parent / "waiting.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, str(TIMEOUT), how],
            env=os.environ | Place(index, COUNT, address).variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(COUNT)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ready(process: subprocess.Popen) -> list:
    """What a process has gathered, once it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready"):
            return ast.literal_eval(line.removeprefix("ready"))
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_they_meet_and_agree_and_leave() -> None:
    with waiting("over") as processes:
        gathered = [ready(process) for process in processes]
        assert gathered[0] == gathered[1] == gathered[2]
        indices, times, decided = zip(*gathered[0], strict=True)
        assert indices == (0, 1, 2) and decided == (17, 17, 17)
        assert times[0] == min(times), "process 0 comes first"
        assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        (1, signal.SIGKILL),
        (1, signal.SIGSTOP),
        pytest.param(2, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(2, signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_the_others_say_which_is_gone_and_end(victim: int, number: signal.Signals) -> None:
    with waiting() as processes:
        for process in processes:
            ready(process)
        time.sleep(0.5)
        processes[victim].send_signal(number)
        others = [process for process in processes if process is not processes[victim]]
        assert [process.wait(timeout=60) for process in others] == [1, 1]
        output, errors = processes[0].communicate()
        who = f"process {victim} (pid {processes[victim].pid} on host {socket.gethostname()})"
        what = "is gone" if number == signal.SIGKILL else f"has given no sign of life for {TIMEOUT:g} s"
        assert f"failed: {who} {what}" in errors and f"lost: failed {who} {what}" in output
        assert f"process {3 - victim}: failed" not in others[1].communicate()[1], "one says it, not all"
        if number == signal.SIGSTOP:
            assert processes[victim].wait(timeout=60) == -signal.SIGKILL, "it does not wake up and go on alone"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_process_0_is_missed_too(number: signal.Signals) -> None:
    with waiting() as processes:
        for process in processes:
            ready(process)
        processes[0].send_signal(number)
        assert all(process.wait(timeout=60) for process in processes[1:])
        errors = [process.communicate()[1] for process in processes[1:]]
        if number == signal.SIGSTOP:  # killed, it takes JAX's service along, whose own words may come first
            assert any(f"process 0 (pid {processes[0].pid}" in text for text in errors), errors
            assert processes[0].wait(timeout=60) == -signal.SIGKILL


@pytest.mark.slow
def test_an_error_while_it_ends_does_not_keep_it() -> None:
    with waiting("stumbles") as processes:
        for process in processes:
            ready(process)
        processes[1].kill()
        assert processes[0].wait(timeout=60) == processes[2].wait(timeout=60) == 1
        assert f"process 1 (pid {processes[1].pid}" in processes[0].communicate()[1]


@pytest.mark.slow
def test_what_all_refuse_process_0_says() -> None:
    with waiting("all refuse") as processes:
        for process in processes:
            ready(process)
        output, errors = processes[0].communicate(timeout=60)
        assert "RequestError" in errors and "the data is another one" in errors and "process 1" not in errors
        assert "lost:" not in output, "process 0 ends by its own error"


@pytest.mark.slow
def test_all_frozen_together_go_on() -> None:
    """As when a terminal, a scheduler or a virtual machine suspends them, for longer than the timeout."""
    with waiting() as processes:
        for process in processes:
            ready(process)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(TIMEOUT + 3)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(TIMEOUT)
        assert [process.poll() for process in processes] == [None, None, None]


@pytest.mark.slow
def test_one_that_fails_says_why() -> None:
    with waiting("fails") as processes:
        assert processes[0].wait(timeout=60) == processes[2].wait(timeout=60) == 1
        assert "process 1 failed: ValueError: a disk of its own is full" in processes[0].communicate()[1]
