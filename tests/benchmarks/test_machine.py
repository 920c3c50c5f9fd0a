"""Whether a machine has other work."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import machine


def test_ticks_that_were_not_idle(monkeypatch) -> None:
    """By proc(5): user, nice, system, idle, waiting, interrupts (two), stolen; then guests, which are among users."""
    text = "cpu  100 20 30 400 50 6 7 8 90 90\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    monkeypatch.setattr(machine, "Path", lambda path: SimpleNamespace(read_text=lambda: text))
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    assert machine._busy() == 1.71


@pytest.mark.parametrize(
    ("busy", "load", "cores", "quiet"),
    [(7.06, 0.2, 0.03, True), (7.06, 0.9, 0.03, False), (8.0, 0.2, 0.5, False), (6.9, 0.2, 0.0, True)],
)
def test_quiet(busy: float, load: float, cores: float, quiet: bool, monkeypatch) -> None:
    """In two seconds of which this program takes one on one core, counted by hand."""
    clocks = {"perf_counter": iter([10.0, 12.0]), "process_time": iter([3.0, 4.0]), "busy": iter([6.0, busy])}
    slept = []
    fake = {name: clocks[name].__next__ for name in ("perf_counter", "process_time")}
    monkeypatch.setattr(machine, "time", SimpleNamespace(sleep=slept.append, **fake))
    monkeypatch.setattr(machine, "_busy", clocks["busy"].__next__)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 5.0, 5.0))
    found = machine.found(2.0)
    assert (found["others_busy_cores"], found["quiet"], slept) == (cores, quiet, [2.0])
    assert machine.said(found) == "" if quiet else f"keep {cores} of" in machine.said(found)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat is Linux's")
def test_a_process_that_computes_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert machine.found()["others_busy_cores"] > machine.QUIET_CORES
        finally:
            other.kill()
