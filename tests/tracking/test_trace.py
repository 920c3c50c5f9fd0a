"""Spans of a trace: which belong to a program of the devices, and what an operation took without those inside it."""

import gzip
import json
from pathlib import Path
from typing import Any

from olmo_hydra.tracking.trace import LISTED, operations, programs, read, traces


def event(name: str, start: float, length: float, lane: int = 1, run: int | None = None, module: str = "jit_step"):
    arguments = {} if run is None else {"args": {"hlo_module": module, "hlo_op": name, "run_id": str(run)}}
    return {"ph": "X", "pid": 7, "tid": lane, "name": name, "ts": start, "dur": length, **arguments}


def written(folder: Path, events: list[dict[str, Any]], when: str = "2026_01_01_00_00_00") -> Path:
    place = folder / "plugins" / "profile" / when
    place.mkdir(parents=True)
    with gzip.open(place / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [{"ph": "M", "pid": 7, "name": "process_name"}, *events]}, file)
    return place / "host.trace.json.gz"


def test_a_program_reaches_from_its_first_operation_to_its_last_on_all_lanes(tmp_path) -> None:
    """The same program again is another execution; what the host did is none."""
    first = [event("dot", 10, 5, run=1), event("add", 12, 9, lane=2, run=1)]
    later = [event("dot", 40, 5, run=2), event("mark", 22, 1, run=3, module="jit_mark")]
    found = programs(read(written(tmp_path, [*later, event("python", 0, 100), *first])))
    assert [(span.name, span.start, span.end) for span in found] == [
        ("jit_step", 10, 21),
        ("jit_mark", 22, 23),
        ("jit_step", 40, 45),
    ]


def test_an_operation_is_charged_without_those_inside_it(tmp_path) -> None:
    """A loop of 100 with 30 and 20 inside, of which one has 5 inside; on another thread something beside it."""
    spans = [event("while", 0, 100, run=1), event("dot", 10, 30, run=1), event("dot", 50, 20, run=1)]
    spans += [event("add", 52, 5, run=1), event("beside", 20, 60, lane=2, run=1)]
    found = {row["name"]: (row["seconds"], row["times"]) for row in operations(read(written(tmp_path, spans)))}
    assert found == {"beside": (6e-5, 1), "while": (5e-5, 1), "dot": (4.5e-5, 2), "add": (5e-6, 1)}


def of_tpu(pid: int, starts: list[float], operations: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
    """The lanes of one TPU. Programs have their fingerprint behind their name, and executions a number; operations
    say neither (marin-community/marin, `marin/profiling/trace_summary.py`, which reads such traces; the names of
    processes and lanes: openxla/xla, `xla/tsl/profiler/utils/xplane_schema.cc`)."""
    lanes = {1: "Steps", 2: "XLA Modules", 3: "XLA Ops", 4: "Async XLA Ops"}
    names = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"/device:TPU:{pid - 3}"}}]
    names += [{"ph": "M", "pid": pid, "tid": n, "name": "thread_name", "args": {"name": lanes[n]}} for n in lanes]
    ran = [
        {"name": f"jit_{name}(4711)", "tid": 2, "ts": start, "dur": 100, "args": {"run_id": str(run)}}
        for run, (name, start) in enumerate(zip(("step", "mark", "step"), starts, strict=True), 17)
    ]
    arguments = {"hlo_category": "convolution fusion", "tf_op": "jit(step)/dot_general:", "device_duration_ps": "1"}
    done = [{"name": name, "tid": 3, "ts": at, "dur": dur, "args": arguments} for name, at, dur in operations]
    beside = [
        {"name": "copy-start.1", "tid": 4, "ts": starts[0], "dur": 90},
        {"name": "7", "tid": 1, "ts": 0, "dur": 900},
    ]
    return names + [{"ph": "X", "pid": pid, **event} for event in ran + done + beside]


def test_operations_of_a_tpu_are_of_the_program_that_ran_then(tmp_path) -> None:
    """Two TPUs; a loop of 80 with a product of 30 inside; something between two programs is of none."""
    inside = [("while.2", 0, 80), ("fusion.5", 10, 30), ("fusion.5", 200, 40), ("fusion.6", 310, 20), ("idle", 150, 5)]
    host = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "tid": 3, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "X", "pid": 701, "tid": 3, "name": "host", "ts": 0, "dur": 999},
    ]
    one, other = of_tpu(3, [0, 200, 300], inside), of_tpu(4, [5, 205, 305], [("fusion.6", 310, 50)])
    spans = read(written(tmp_path, [*host, *one, *other]))
    found = {(row["name"], row["program"]): (row["seconds"], row["times"]) for row in operations(spans)}
    assert found == {
        ("while.2", "jit_step"): (5e-5, 1),
        ("fusion.5", "jit_step"): (3e-5, 1),
        ("fusion.5", "jit_mark"): (4e-5, 1),
        ("fusion.6", "jit_step"): (7e-5, 2),
    }
    ran = [(span.name, span.start, span.end) for span in programs(spans)]
    assert ran == [("jit_step", 0, 80), ("jit_mark", 200, 240), ("jit_step", 310, 360)]


def test_the_rest_is_one_line(tmp_path) -> None:
    spans = [event(f"op{n}", 100 * n, 50 - n, run=1) for n in range(LISTED + 3)]
    *listed, others = operations(read(written(tmp_path, spans)))
    assert [row["name"] for row in listed] == [f"op{n}" for n in range(LISTED)]
    assert (others["name"], others["times"]) == ("(others)", 3)
    assert round(1e6 * others["seconds"]) == sum(50 - n for n in range(LISTED, LISTED + 3))


def test_the_newest_trace_is_the_last(tmp_path) -> None:
    newer, older = written(tmp_path, [], "2026_01_02_00_00_00"), written(tmp_path, [])
    assert traces(tmp_path) == [older, newer]
