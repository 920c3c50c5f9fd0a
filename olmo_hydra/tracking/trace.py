"""Traces of JAX's profiler, in the format of Chrome's: what the devices did, and when. No JAX."""

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

LISTED = 12  # operations
TPU, OPERATIONS, PROGRAMS = "/device:TPU:", "XLA Ops", "XLA Modules"
Event = dict[str, Any]
Lane = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """Something that a thread of the host, or a stream of a device, did: from `start` to `end`, in microseconds.

    Attributes:
      lane: The process and thread of the trace.
      name: What it was.
      program: And execution of the program that it belongs to; None where it is none of a device's.
    """

    lane: Lane
    name: str
    program: tuple[str, str] | None
    start: float
    end: float


def traces(folder: Path) -> list[Path]:
    """The traces below the folder that the profiler was given, oldest first."""
    return sorted(folder.glob("plugins/profile/*/*.trace.json.gz"))


def read(trace: Path) -> list[Span]:
    """All spans of a trace that this process has written (it is read whole), by their start.

    On processors and GPUs an operation names its program. A TPU has a lane of operations and one of programs (their
    names: `xla/tsl/profiler/utils/xplane_schema.cc` of openxla/xla), and an operation is of the program that ran then;
    what runs beside them, on lanes for copies and SparseCores, belongs to none here.
    """
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    lanes = _lanes_of_tpus(events)
    tpus = {process for process, _ in lanes}
    spans = [event for event in events if event.get("ph") == "X"]
    runs: dict[int, list[Span]] = defaultdict(list)
    for event in spans:
        if lanes.get(_lane(event)) == PROGRAMS:
            runs[event["pid"]].append(_span(event, _execution(event)))
    for of_device in runs.values():
        of_device.sort(key=lambda span: span.start)

    def program(event: Event) -> tuple[str, str] | None:
        if event["pid"] not in tpus:
            return _named_program(event)
        return _running(runs[event["pid"]], event["ts"]) if lanes.get(_lane(event)) == OPERATIONS else None

    return sorted((_span(event, program(event)) for event in spans), key=lambda span: span.start)


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


def _lanes_of_tpus(events: Iterable[Event]) -> dict[Lane, str]:
    """The names of the lanes of TPUs."""
    named = [event for event in events if event.get("ph") == "M" and "name" in event.get("args", {})]
    processes = {event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"}
    return {
        _lane(event): event["args"]["name"]
        for event in named
        if event["name"] == "thread_name" and processes.get(event["pid"], "").startswith(TPU)
    }


def _named_program(event: Event) -> tuple[str, str] | None:
    """The program of an operation that says it, and its execution."""
    arguments = event.get("args", {})
    if "hlo_op" not in arguments or "hlo_module" not in arguments:
        return None
    return arguments["hlo_module"], str(arguments.get("run_id", ""))


def _execution(event: Event) -> tuple[str, str]:
    """What a span on the lane of programs is: `jit_step(1234)`, the number a fingerprint of the program."""
    return re.sub(r"\(\d+\)$", "", event["name"]), str(event.get("args", {}).get("run_id", event["ts"]))


def _running(runs: Sequence[Span], at: float) -> tuple[str, str] | None:
    """The program that was running then, of executions by their start."""
    index = bisect_right(runs, at, key=lambda run: run.start) - 1
    return runs[index].program if index >= 0 and at < runs[index].end else None


def _lane(event: Event) -> Lane:
    return event["pid"], event["tid"]


def _span(event: Event, program: tuple[str, str] | None) -> Span:
    start = event["ts"]
    return Span(_lane(event), event["name"], program, start, start + event.get("dur", 0.0))
