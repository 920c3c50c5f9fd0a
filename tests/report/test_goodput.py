"""The section on where the time went."""

import pytest

from olmo_hydra.report.build import page, write_report
from olmo_hydra.report.content import Prose, Shares, Table
from olmo_hydra.report.evidence import Evidence
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from tests.report.synthetic import config
from tests.tracking.test_goodput import KILLED_TWICE

FIRST = {"seconds": 12.345, "import": 3.0, "open": 1.0, "compile": 6.5, "updates": 1.845}


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path / "nano-0123abcd")
    config(run_dir)
    return run_dir


def blocks(run_dir, kind):
    (found,) = [section for section in page(Evidence(run_dir)).sections if section.id == "time"]
    return [block for block in found.blocks if isinstance(block, kind)]


def test_the_account_of_a_run_that_was_killed_twice(run_dir):
    record = Record(run_dir)
    for row in KILLED_TWICE:
        record.time(row)
    (lead,) = blocks(run_dir, Prose)
    assert lead.text == (
        "Goodput 66.7%: of 3 min 30 s of wall time in 3 starts (0.339 chip-hours), 2 min 20 s (0.218 chip-hours) went "
        "into updates that still count. Restarts cost 20.5%. Between the starts nothing ran for 4 min 5 s, which is no "
        "part of that."
    )
    (table,) = blocks(run_dir, Table)
    assert table.rows[0] == ["updates that count", "2 min 20 s", "66.7%", "0.218"]
    assert table.rows[-3] == ["redone after a restart", "25 s", "11.9%", "0.0444"]
    assert table.rows[-1] == ["all", "3 min 30 s", "100.0%", "0.339"]
    (bar,) = blocks(run_dir, Shares)
    assert [name for name, _ in bar.parts][:3] == ["updates that count", "waiting for data", "held up by saving"]
    assert sum(share for _, share in bar.parts) == pytest.approx(1, abs=1e-12)
    assert write_report(run_dir).read_text().count("flex-grow") == len(bar.parts)


def test_what_each_start_took_to_its_first_update(run_dir):
    record = Record(run_dir)
    record.time(KILLED_TWICE[0])
    for step in range(1, 13):
        record.event("first_update", step=step, **FIRST)
    _, starts = blocks(run_dir, Table)
    assert [row[1] for row in starts.rows] == [str(step) for step in range(3, 13)]
    assert starts.rows[0][2:] == ["12.3", "3.0", "1.0", "", "6.5", "", "", "1.8"]
    assert starts.note.startswith("The last 10 of 12 starts.")


def test_without_rows_of_time_there_is_no_section(run_dir):
    assert "time" not in [section.id for section in page(Evidence(run_dir)).sections]
