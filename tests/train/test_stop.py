"""Signals that stop a run, without the run."""

import signal
import subprocess
import sys
import time

import pytest

from olmo_hydra.train.stop import Stopped, StopRequest

SIGNALS = StopRequest.SIGNALS
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
def test_with_nothing_to_save_it_is_raised_where_it_falls(number: signal.Signals) -> None:
    with pytest.raises(Stopped) as raised, StopRequest() as stop:
        signal.raise_signal(number)
    assert raised.value.signal is stop.signal is number and raised.value.saved is None
    expected = ("interrupted", 130) if number is signal.SIGINT else ("preempted", 75)
    assert (raised.value.event, raised.value.status) == expected


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
    with pytest.raises(Stopped) as raised, StopRequest() as stop:
        try:
            signal.raise_signal(signal.SIGUSR2)
        finally:
            signal.raise_signal(later)  # while the first one ends the run
    assert raised.value.signal is stop.signal is signal.SIGUSR2


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
            time.sleep(0.1)  # two of a kind that wait are one
        try:
            return process.wait(timeout=60), process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("defer", ["stop.defer()", "pass"])
def test_ctrl_c_after_another_signal_stops_at_once_whatever_it_is_doing(first: signal.Signals, defer: str) -> None:
    status, said = ended(defer, first, signal.SIGINT)
    assert status == 130 and said.strip() == "stopped at once; the same command goes on from what is saved"


def test_with_nothing_to_save_a_long_call_is_not_waited_for() -> None:
    status, said = ended("pass", signal.SIGTERM)
    assert (
        status == 75
        and said.strip() == "preempted by SIGTERM at once, with nothing to save: the same command continues"
    )
