"""Signals that stop a run, without the run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from olmo_hydra.train.stop import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Computes for minutes without coming back to Python, as a compilation does.
BUSY = """
import hashlib, sys
from olmo_hydra.train.stop import StopRequest
with StopRequest() as stop:
    {defer}
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_with_something_to_save_it_waits_until_it_is_asked_for(number: signal.Signals, capfd) -> None:
    with StopRequest() as stop:
        stop.defer()
        assert not stop.asked()
        before = time.monotonic()
        signal.raise_signal(number)
        assert stop.asked() and stop.signal is number and before <= stop.since <= time.monotonic()
    assert capfd.readouterr().err.strip().startswith(f"{number.name}: stopping once the update at hand is saved")


@pytest.mark.parametrize("later", [number for number in SIGNALS if number is not signal.SIGINT])
def test_further_signals_of_a_scheduler_change_nothing(later: signal.Signals) -> None:
    with StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(later)
        assert stop.asked() and stop.signal is signal.SIGUSR2


def test_what_was_there_before_is_there_again() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def ended(defer: str, *numbers: signal.Signals) -> tuple[int, str]:
    """How a process ends that gets these signals, a moment apart, while it does not come back to Python."""
    command = [sys.executable, "-c", BUSY.format(defer=defer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        time.sleep(0.5)  # until it is in there
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.3)  # two of a kind that wait are one
        try:
            return process.wait(timeout=60), process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_another_signal_stops_at_once_whatever_it_is_doing(first: signal.Signals) -> None:
    status, said = ended("stop.defer()", first, signal.SIGINT)
    assert status == 130 and said.strip() == "stopped at once; the same command goes on from what is saved"


@pytest.mark.parametrize("number", SIGNALS)
def test_with_nothing_to_save_it_ends_at_once_whatever_it_is_doing(number: signal.Signals) -> None:
    status, said = ended("stop.at_once = lambda stopped: print(stopped.event, flush=True)", number)
    event, expected = ("interrupted", 130) if number is signal.SIGINT else ("preempted", 75)
    assert status == expected
    assert said.strip() == f"{event} by {number.name} at once, with nothing to save: the same command continues"


def test_one_that_comes_just_before_there_is_something_to_save_is_not_lost() -> None:
    code = "import os, signal, time\nfrom olmo_hydra.train.stop import StopRequest\nwith StopRequest() as stop:\n"
    code += "    os.kill(os.getpid(), signal.SIGTERM)\n    stop.defer()\n    time.sleep(5)\n"
    code += "    print(stop.asked())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) in [(75, ""), (0, "True\n")], done.stderr


def test_an_import_of_an_extension_does_not_turn_it_into_something_else() -> None:
    code = "from olmo_hydra.train.stop import StopRequest\nwith StopRequest():\n"
    code += "    print('ready', flush=True)\n    import jax"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while "jaxlib" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 75
