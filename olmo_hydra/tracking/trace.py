"""Traces of JAX's profiler, in the format of Chrome's: what the devices did, and when. No JAX."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

LISTED = 12  # operations


@dataclass(frozen=True)
class Span:
    """Something that a thread of the host, or a stream of a device, did: from `start` to `end`, in microseconds.

    Attributes:
      lane: The process and thread of the trace.
      name: What it was.
      program: And execution of the program that it belongs to; None where it is none of a device's.
    """

    lane: tuple[int, int]
    name: str
    program: tuple[str, str] | None
    start: float
    end: float


def traces(folder: Path) -> list[Path]:
    """The traces below the folder that the profiler was given, oldest first."""
    return sorted(folder.glob("plugins/profile/*/*.trace.json.gz"))


def read(trace: Path) -> list[Span]:
    """All spans of a trace that this process has written (it is read whole), by their start."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return sorted(map(_span, (event for event in events if event.get("ph") == "X")), key=lambda span: span.start)


def programs(spans: Iterable[Span]) -> list[Span]:
    """Each execution of a program on the devices, from its first operation's start to its last one's end."""
    found: dict[tuple[str, str], Span] = {}
    for span in spans:
        if span.program is not None:
            known = found.get(span.program, span)
            ends = min(known.start, span.start), max(known.end, span.end)
            found[span.program] = Span(known.lane, span.program[0], span.program, *ends)
    return sorted(found.values(), key=lambda span: span.start)


def operations(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """The operations that took most of the devices' time, without those inside them: `name`, `program`, seconds, times.

    The last one, `(others)`, is the rest. Threads that compute beside each other count each.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    times = Counter[tuple[str, str]]()
    of_devices = sorted((span for span in spans if span.program), key=lambda span: (span.lane, span.start, -span.end))
    for _, lane in groupby(of_devices, key=lambda span: span.lane):
        around: list[Span] = []
        for span in lane:
            while around and around[-1].end <= span.start:
                around.pop()
            if around:
                seconds[_operation(around[-1])] -= (span.end - span.start) / 1e6
            seconds[_operation(span)] += (span.end - span.start) / 1e6
            times[_operation(span)] += 1
            around.append(span)
    ordered = sorted(seconds, key=lambda operation: -seconds[operation])
    rows = [_row(*operation, seconds[operation], times[operation]) for operation in ordered[:LISTED]]
    if rest := ordered[LISTED:]:
        rows.append(_row("(others)", "", sum(map(seconds.__getitem__, rest)), sum(map(times.__getitem__, rest))))
    return rows


def _row(name: str, program: str, seconds: float, times: int) -> dict[str, Any]:
    return {"name": name, "program": program, "seconds": round(max(seconds, 0.0), 6), "times": times}


def _operation(span: Span) -> tuple[str, str]:
    assert span.program is not None
    return span.name, span.program[0]


def _span(event: dict[str, Any]) -> Span:
    arguments = event.get("args", {})
    program = None
    if "hlo_op" in arguments and "hlo_module" in arguments:
        program = arguments["hlo_module"], str(arguments.get("run_id", ""))
    start = event["ts"]
    return Span((event["pid"], event["tid"]), event["name"], program, start, start + event.get("dur", 0.0))
