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


def test_the_rest_is_one_line(tmp_path) -> None:
    spans = [event(f"op{n}", 100 * n, 50 - n, run=1) for n in range(LISTED + 3)]
    *listed, others = operations(read(written(tmp_path, spans)))
    assert [row["name"] for row in listed] == [f"op{n}" for n in range(LISTED)]
    assert (others["name"], others["times"]) == ("(others)", 3)
    assert round(1e6 * others["seconds"]) == sum(50 - n for n in range(LISTED, LISTED + 3))


def test_the_newest_trace_is_the_last(tmp_path) -> None:
    newer, older = written(tmp_path, [], "2026_01_02_00_00_00"), written(tmp_path, [])
    assert traces(tmp_path) == [older, newer]
