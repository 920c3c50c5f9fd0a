"""Rows that a run writes, and the same ones with one value less or another than a run can write."""

import json

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.row_checks import KEYS
from olmo_hydra.tracking.run_dir import RunDir

TIME = "2026-01-05T09:00:00.000+00:00"
ORIGIN = {"from": "runs/a@7", "load": "weights", "differs": ["lr is 1 and 2"], "fingerprint": "a@7"}
SKIPPED = {"step": 60, "loss": None, "grad_norm": 1.5, "lr": 0.1, "why": "not finite: loss nan", "instances": [4, 5]}
STOPPED = {"error": "RunFailed: 3 in a row", "first": 58, "last": 60, "checkpoint": None, "why": "not finite: loss nan"}
CHANGED = {"step": 60, "differences": ["a"], "heldout": [], "begun": None, "ledger_begins_anew": False}
TRACE = "profile/plugins/profile/2026_01_05/host.trace.json.gz"
OPERATION = {"name": "dot", "program": "jit_step", "seconds": 0.5, "times": 3}
PROFILED = {"first": 2, "last": 5, "trace": TRACE, "operations": [OPERATION]}

# By event: what a run writes, and which of that its readers can do without.
EVENTS = {
    "started": ({"step": 0, "init": ORIGIN}, {"step", "init"}),
    "resumed": ({"step": 40, "changed": {"eval.batch": {"was": 1, "is": 2}}}, {"changed"}),
    "first_update": ({"step": 1, "seconds": 9.25, "import": 3.0, "updates": 1}, {"seconds", "import", "updates"}),
    "checkpoint": ({"step": 40}, set()),
    "skipped": (SKIPPED, set()),
    "data_repeated": ({"step": 60, "epoch": 1, "repeated": 3, "examples": [4]}, {"examples"}),
    "data_changed": (CHANGED, set()),
    "failed": (STOPPED, {"first"}),  # without it, a failure of another kind
    "profiled": (PROFILED, set()),
    "profile_failed": ({"first": 2, "last": 5, "error": "OSError: full"}, set()),
    "finished": ({"step": 120}, set()),
    "imported": ({"step": 0, "source": "hf:a", "parameters": 12}, {"step", "source"}),
    "of a later version": ({"what": [1]}, {"what"}),
}


def refused(run_dir: RunDir, kind: str, row: dict) -> str | None:
    """What is said of a row that comes second in its file; None where it is read."""
    path = run_dir.path / f"{kind}.jsonl"
    right = {"time": TIME, "start": 1, "chips": 8, "step": 0, "event": "started", **dict.fromkeys(KEYS, 0.0)}
    path.write_text(f"{json.dumps(right)}\n{json.dumps(row)}\n{json.dumps(right)}\n")
    try:
        assert run_dir.rows(kind)[1] == row
    except RequestError as error:
        assert error.where == f"{path}:2" and error.problem.startswith("line 2 ")
        return str(error)
    return None


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_has_what_its_readers_take_for_granted(tmp_path, event: str) -> None:
    fields, spare = EVENTS[event]
    row = {"time": TIME, "event": event, **fields}
    assert refused(RunDir(tmp_path), "events", row) is None
    for key in row:
        said = refused(RunDir(tmp_path), "events", {name: value for name, value in row.items() if name != key})
        assert said is None if key in spare else f"has no {key}" in str(said)


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        *(
            ("started", {"time": time})
            for time in (None, 5, "yesterday", "2026-01-05T09:00:00", "0001-01-01T00:00+14:00", [])
        ),
        *(("started", {"init": init}) for init in (None, "run:a", {**ORIGIN, "differs": "lr"}, {"from": "runs/a@7"})),
        *(("checkpoint", {"step": step}) for step in (None, -1, 40.0, "40", True)),
        *(("first_update", {"updates": seconds}) for seconds in (None, -1.0, "1", 1e300, False)),
        *(("skipped", {"loss": "nan"}), ("skipped", {"why": None}), ("skipped", {"instances": ["4"]})),
        *(("data_repeated", {"repeated": None}), ("data_repeated", {"epoch": "1"})),
        *(("data_changed", {"begun": "1"}), ("data_changed", {"ledger_begins_anew": None})),
        *(("data_changed", {"differences": 5}), ("data_changed", {"heldout": [5]})),
        *(("failed", {"last": None}), ("failed", {"checkpoint": "none"}), ("failed", {"error": 1})),
        *(
            ("profiled", {"trace": trace})
            for trace in (
                None,
                "javascript:alert(1)",
                "/etc/passwd",
                TRACE.replace("2026_01_05", ".."),
                f"{TRACE}#a",
                "",
            )
        ),
        *(("profiled", {"operations": [OPERATION | {"seconds": "1"}]}), ("profiled", {"operations": None})),
        *(("profiled", {"operations": [OPERATION] * 14}), ("profile_failed", {"error": None})),
        *(("finished", {"step": None}), ("imported", {"parameters": "12"})),
    ],
)
def test_an_event_with_a_value_that_no_run_writes_is_refused(tmp_path, event: str, wrong: dict) -> None:
    row = {"time": TIME, "event": event, **EVENTS[event][0]}
    assert f"as {next(iter(wrong))} that no run" in str(refused(RunDir(tmp_path), "events", row | wrong))


def test_a_damaged_row_of_time_says_that_the_file_may_go(tmp_path) -> None:
    row = {"time": TIME, "start": 1, "chips": 8, "step": 0, **dict.fromkeys(KEYS, 0.0)}
    assert refused(RunDir(tmp_path), "time", row) is None
    for key in row:
        said = refused(RunDir(tmp_path), "time", {name: value for name, value in row.items() if name != key})
        assert f"has no {key}" in str(said) and "remove the file: nothing else needs it" in str(said)
    for wrong in (
        *({"step": step} for step in ("40", -1, None)),
        *({"updates": seconds} for seconds in (1e300, True, "1")),
        *({"time": time} for time in (5, "yesterday", None)),
        *({"chips": [8]}, {"start": None}),
    ):
        assert f"as {next(iter(wrong))} that no run" in str(refused(RunDir(tmp_path), "time", row | wrong))
