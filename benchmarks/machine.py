"""The machine that something is measured on, and whether it has other work."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUIET_CORES, QUIET_LOAD = 0.1, 0.5  # most that others keep busy; most of the load of the last minute


def found(seconds: float = 1.0) -> dict[str, Any]:
    """The machine before a benchmark: its processor, its load, and how many cores others keep busy meanwhile.

    `quiet` says whether numbers that are measured now are worth anything; where they are not, so does a line.
    """
    began, others = time.process_time(), busy_cores()
    time.sleep(seconds)
    busy, load = others(time.process_time() - began), os.getloadavg()
    quiet = busy is not None and busy <= QUIET_CORES and load[0] <= QUIET_LOAD
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "load": load,
        "others_busy_cores": busy,
        "quiet": quiet,
    }


def said(machine: dict[str, Any]) -> str:
    """A line on a machine that is not quiet, with its end; nothing on one that is."""
    if machine["quiet"]:
        return ""
    busy = machine["others_busy_cores"]
    cores = "an unknown number of cores" if busy is None else f"{busy} of {machine['cpus']} cores"
    return f"NOT QUIET: others keep {cores} busy, load {machine['load'][0]:.1f}; the result says so\n"


def busy_cores() -> Callable[[float], float | None]:
    """Starts a clock; called with the processor seconds of a program, it says how many cores others kept busy.

    None where there is no Linux to ask.
    """
    began, before = time.perf_counter(), _busy()

    def ended(own: float) -> float | None:
        now = _busy()
        if before is None or now is None:
            return None
        return round(max(0.0, now - before - own) / (time.perf_counter() - began), 2)

    return ended


def _busy() -> float | None:
    """Processor seconds of this machine that were not idle."""
    try:
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    """The name of the processor, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
