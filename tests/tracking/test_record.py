"""What is on disk after writes, kills and restarts, byte for byte."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir


def row(step):
    return {"step": step, "tokens": step * 4096, "loss": 5.0 / (step + 1), "lr": 1e-3 / 3}


def write(record, steps):
    for step in steps:
        record.metrics(row(step))
        record.throughput({"step": step, "seconds": 0.1})
        if step % 5 == 0:
            record.evaluation({"step": step, "suite": "heldout", "bits_per_byte": 8.0 / (step + 1), "domains": {}})


def test_rows_are_json_lines_in_the_order_given(tmp_path):
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    record.metrics({"loss": 0.1 + 0.2, "step": 1, "tokens": 4096})
    assert run_dir.metrics.read_bytes() == b'{"step": 1, "loss": 0.30000000000000004, "tokens": 4096}\n'


def test_what_json_cannot_hold_is_null_at_any_depth(tmp_path):
    record = Record(RunDir(tmp_path))
    returned = record.evaluation(
        {
            "step": 1,
            "suite": "heldout",
            "bits_per_byte": math.nan,
            "domains": {"a": {"stderr": math.inf}},
            "n": [-math.inf],
        }
    )
    assert returned == {
        "step": 1,
        "suite": "heldout",
        "bits_per_byte": None,
        "domains": {"a": {"stderr": None}},
        "n": [None],
    }
    assert RunDir(tmp_path).rows("evals") == [returned]


@pytest.mark.parametrize("method", ["metrics", "throughput", "evaluation"])
def test_a_row_without_a_step_is_refused(tmp_path, method):
    with pytest.raises(KeyError, match="step"):
        getattr(Record(RunDir(tmp_path)), method)({"suite": "heldout"})


def test_events_carry_the_time_in_utc(tmp_path):
    Record(RunDir(tmp_path)).event("checkpoint", step=5)
    (event,) = RunDir(tmp_path).rows("events")
    assert list(event) == ["time", "event", "step"] and event["time"].endswith("+00:00")


@settings(deadline=None)  # it forces files to disk
@given(st.integers(1, 24), st.integers(0, 24), st.binary(max_size=9).filter(lambda tail: b"\n" not in tail))
def test_an_interrupted_run_writes_the_bytes_of_an_uninterrupted_one(tmp_path_factory, killed_at, checkpoint, tail):
    checkpoint = min(checkpoint, killed_at)
    whole, broken = RunDir(tmp_path_factory.mktemp("whole")), RunDir(tmp_path_factory.mktemp("broken"))
    write(Record(whole), range(1, 25))
    record = Record(broken)
    record.event("started")
    write(record, range(1, killed_at + 1))
    for path in (broken.metrics, broken.evals, broken.events):
        with open(path, "ab") as file:
            file.write(tail)

    resumed = Record(broken)
    resumed.rewind(checkpoint)
    resumed.event("resumed", step=checkpoint)
    write(resumed, range(checkpoint + 1, 25))

    assert broken.metrics.read_bytes() == whole.metrics.read_bytes()
    assert broken.evals.read_bytes() == whole.evals.read_bytes()
    assert [event["event"] for event in broken.rows("events")] == ["started", "resumed"]


def test_without_a_checkpoint_all_rows_go_and_events_stay(tmp_path):
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    record.event("started")
    write(record, range(0, 7))
    Record(run_dir).rewind(None)
    assert [run_dir.rows(kind) for kind in ("metrics", "throughput", "evals")] == [[], [], []]
    assert len(run_dir.rows("events")) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:-1],
        lambda rows: rows[:1] + rows[2:],
        lambda rows: rows[:2] + rows[1:],
        lambda rows: [rows[1], rows[0], *rows[2:]],
        lambda rows: [rows[0].replace(b": 0", b": 1").replace(b": 5", b": 6"), *rows[1:]],
        lambda rows: [],
    ],
    ids=["end", "hole", "twice", "order", "edited", "all"],
)
def test_rows_that_are_not_those_of_the_checkpoint_are_refused(tmp_path, name, change):
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    write(record, range(0, 11))
    kept = record.kept()
    write(record, range(11, 24))
    path = tmp_path / name
    *rows, _ = path.read_bytes().split(b"\n")
    n = {"metrics.jsonl": 11, "evals.jsonl": 3}[name]  # up to step 10
    changed = b"".join(row + b"\n" for row in change(rows[:n]) + rows[n:])
    whole = path.read_bytes()
    path.write_bytes(changed)
    assert changed != whole
    with pytest.raises(RequestError, match=r"rows up to update 10 (differ by|have other content)") as refused:
        Record(run_dir).rewind(10, kept)
    assert str(path) in str(refused.value) and path.read_bytes() == changed

    path.write_bytes(whole)
    again = Record(run_dir)
    again.rewind(10, kept)
    assert again.kept() == kept
    write(again, range(11, 24))
    assert path.read_bytes() == whole


def test_a_damaged_file_is_not_cut(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.metrics.write_bytes(b'{"step": 1}\nnot json\n{"step": 3}\n')
    with pytest.raises(RequestError, match=r"metrics\.jsonl:2"):
        Record(run_dir).rewind(1)
    assert json.loads(run_dir.metrics.read_text().splitlines()[2]) == {"step": 3}
