"""Where the time of a run went: accounts written by hand, then what is true of any."""

import json
import time
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.goodput import KEYS, Account, TimeSheet, account, of_run
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir

MIDNIGHT = datetime(2026, 1, 5, tzinfo=UTC)


def row(start: int, at: float, step: int, chips: int = 1, **seconds: float) -> dict:
    """A row of start `start`, written `at` seconds past midnight; what is not named took no time."""
    moment = (MIDNIGHT + timedelta(seconds=at)).isoformat(timespec="milliseconds")
    return {"time": moment, "start": start, "chips": chips, "step": step, **dict.fromkeys(KEYS, 0.0), **seconds}


BEFORE = {"import": 3.0, "open": 1.0}


def seconds(found: Account) -> dict[str, float]:
    return {use: value / 1000 for use, value in found.milliseconds.items() if value}


def test_a_run_that_was_never_stopped() -> None:
    found = account([
        row(1, 4, 0, **BEFORE),
        row(1, 12, 0, **BEFORE, eval=2, compile=6),
        row(1, 98, 100, **BEFORE, eval=8, compile=6, data=5, updates=70, save=5),
        row(1, 100, 100, **BEFORE, eval=8, compile=6, data=5, updates=70, save=5, ending=2),
    ])  # fmt: skip
    assert found is not None
    expected = {"startup": 4, "compile": 6, "data": 5, "eval": 8, "save": 5, "updates": 70, "ending": 2}
    assert seconds(found) == expected
    assert (found.goodput, found.down, found.starts) == (0.70, 0, 1)
    assert found.chip_hours("updates") == 70 / 3600


KILLED_TWICE = [
    row(1, 4, 0, 8, **BEFORE),
    row(1, 10, 0, 8, **BEFORE, compile=6),
    row(1, 50, 40, 8, **BEFORE, compile=6, data=4, updates=36),  # checkpoint 40
    row(1, 65, 52, 8, **BEFORE, compile=6, data=5, updates=48, save=2),  # the last before the kill
    # Four minutes later, on half of the chips, from checkpoint 40: 12 s of updates, 1 of data, 2 of saving redone.
    row(2, 305, 40, 4, **BEFORE, restore=1),
    row(2, 405, 80, 4, **BEFORE, restore=1, compile=7, data=9, updates=84),  # checkpoint 80
    row(2, 415, 84, 4, **BEFORE, restore=1, compile=7, data=10, updates=93),
    # And from checkpoint 80, ten seconds after that: 9 s of updates and 1 of data redone.
    row(3, 430, 80, 8, **BEFORE, restore=1),
    row(3, 460, 100, 8, **BEFORE, restore=1, compile=1, updates=20, save=3, ending=1),
]


def test_killed_twice_with_redone_updates_and_other_chips_in_between() -> None:
    found = account(KILLED_TWICE)
    assert found is not None
    assert seconds(found) == {
        **{"startup": 4, "compile": 6, "data": 4 + 9, "updates": 36 + 84 + 20, "save": 3, "ending": 1},
        **{"redone": 15 + 10, "restarts": 5 + 7 + 5 + 1},
    }
    assert found.total == 65_000 + 115_000 + 30_000 and found.goodput == 140 / 210
    assert found.down == 235_000 + 10_000 and found.starts == 3
    assert found.chip_hours("updates") == (36 * 8 + 84 * 4 + 20 * 8) / 3600
    assert found.chip_hours("redone") == (15 * 8 + 10 * 4) / 3600


def test_a_start_from_an_older_checkpoint_takes_from_all_before_it() -> None:
    """The third start begins at 40, so that nothing of the second (80 on) and the first's past 40 counts."""
    found = account([
        row(1, 0, 0), row(1, 40, 40, updates=40), row(1, 80, 80, updates=80),
        row(2, 80, 80), row(2, 100, 100, updates=20),
        row(3, 100, 40), row(3, 160, 100, updates=60),
    ])  # fmt: skip
    assert found is not None
    assert seconds(found) == {"updates": 40 + 60, "redone": 40 + 20}


def test_a_start_that_never_reached_the_loop_and_one_that_begins_anew() -> None:
    """Without a checkpoint even the evaluation at step 0 is made again."""
    found = account([
        row(1, 4, 0, **BEFORE),
        row(2, 10, 0, **BEFORE), row(2, 15, 0, **BEFORE, eval=3, updates=2),
        row(3, 30, 0, **BEFORE), row(3, 40, 7, **BEFORE, eval=3, updates=7),
    ])  # fmt: skip
    assert found is not None
    assert seconds(found) == {"startup": 4, "restarts": 8, "redone": 5, "eval": 3, "updates": 7}
    assert found.down == 2_000 + 11_000


def test_what_goes_back_is_clamped() -> None:
    """The system's clock was set back by an hour between two starts; a reading went back within the first."""
    found = account([row(1, 5000, 0), row(1, 5010, 10, updates=10), row(1, 5009, 10, updates=9),
                     row(2, 1410, 10), row(2, 1420, 20, updates=10)])  # fmt: skip
    assert found is not None
    assert seconds(found) == {"updates": 20} and found.down == 0


def test_no_time_and_no_rows(tmp_path: Path) -> None:
    assert account([]) is None and of_run(RunDir(tmp_path)) is None
    found = account([row(1, 0, 0)])
    assert found is not None and found.goodput == 0


def test_a_torn_last_line_is_left_out_and_damage_before_it_refused(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    whole = "".join(json.dumps(one) + "\n" for one in KILLED_TWICE)
    run_dir.time.write_text(whole + '{"time": "2026-01-05T00:10')
    assert of_run(run_dir) == account(KILLED_TWICE)
    run_dir.time.write_text("{torn\n" + whole)
    with pytest.raises(RequestError, match="damaged"):
        of_run(run_dir)


spans = st.floats(0, 1e6).map(lambda value: round(value, 3))


@st.composite
def starts(draw: st.DrawFn) -> list[dict]:
    """Rows of up to five starts, each from any update that an earlier one can have saved, at any times."""
    rows, reached = [], 0
    for number in range(1, draw(st.integers(1, 5)) + 1):
        step = draw(st.integers(0, reached))
        chips, total = draw(st.integers(1, 4096)), dict.fromkeys(KEYS, 0.0)
        for _ in range(draw(st.integers(1, 6))):
            total = {key: value + draw(spans) for key, value in total.items()}
            rows.append(row(number, draw(spans), step, chips, **total))
            step += draw(st.integers(0, 50))
        reached = max(reached, step)
    return rows


@given(starts())
def test_the_parts_are_the_whole(rows: list[dict]) -> None:
    found = account(rows)
    assert found is not None
    last = {one["start"]: one for one in rows}
    whole = {number: sum(round(1000 * one[key]) for key in KEYS) for number, one in last.items()}
    assert found.total == sum(whole.values())
    assert sum(found.chip_milliseconds.values()) == sum(whole[n] * one["chips"] for n, one in last.items())
    assert min(*found.milliseconds.values(), *found.chip_milliseconds.values(), found.down) >= 0
    if found.total:
        assert sum(Fraction(value, found.total) for value in found.milliseconds.values()) == 1
    assert 0 <= found.goodput <= 1


def test_a_sheet_goes_on_where_the_starts_before_it_ended(tmp_path: Path) -> None:
    """The running goodput is what the account of the same rows says."""
    run_dir = RunDir(tmp_path)
    run_dir.time.write_text("".join(json.dumps(one) + "\n" for one in KILLED_TWICE[:4]))
    reading = {"step": 40, **dict.fromkeys(KEYS, 0.0), **BEFORE}
    sheet = TimeSheet(Record(run_dir), run_dir.rows("time"), 4, lambda: reading)
    assert sheet.goodput() == 36 / (65 + 4)
    reading |= {"step": 50, "updates": 31.0}
    assert sheet.goodput() == (36 + 31) / (65 + 35)
    sheet.note()
    reading |= {"ending": 10.0}
    sheet.close()
    rows = run_dir.rows("time")[4:]
    assert [(one["start"], one["chips"], one["step"], one["updates"], one["ending"]) for one in rows] == [
        *((2, 4, 40, 0, 0), (2, 4, 50, 31, 0), (2, 4, 50, 31, 10)),
    ]
    found = of_run(run_dir)
    assert found is not None and found.goodput == (36 + 31) / (65 + 45)


def test_a_sheet_writes_by_itself_while_nobody_asks(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    sheet = TimeSheet(record, [], 1, lambda: {"step": 0, **dict.fromkeys(KEYS, 0.0)})
    deadline = datetime.now(UTC) + timedelta(seconds=60)
    while len(run_dir.rows("time")) < 3 and datetime.now(UTC) < deadline:
        time.sleep(0.05)
    assert len(run_dir.rows("time")) == 3
    sheet.close()
