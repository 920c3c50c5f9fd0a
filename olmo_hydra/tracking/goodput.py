"""What became of a run's time: the share that advanced it, and where the rest went."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any, Literal, get_args

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.row_checks import BEFORE, KEYS, LOOP
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]

# What a second of a run can have been. `redone` is all that a start spent in its loop past the update from which a
# later start went on; `restarts` is what every start but the first spent before its first update.
Use = Literal["updates", "data", "eval", "save", "compile", "startup", "ending", "redone", "restarts"]


@dataclass(frozen=True)
class Account:
    """Time of all starts of a run, in whole milliseconds, so that the parts sum to the total exactly.

    Attributes:
      milliseconds: Of wall time, by use.
      chip_milliseconds: The same times the chips of the start.
      down: Milliseconds between the last row of a start and the begin of the next. Nobody pays for chips then, so they
        are no part of the rest.
      starts: How many there were.
    """

    milliseconds: dict[Use, int]
    chip_milliseconds: dict[Use, int]
    down: int
    starts: int

    @property
    def total(self) -> int:
        """Milliseconds of wall time of all starts."""
        return sum(self.milliseconds.values())

    @property
    def goodput(self) -> float:
        """The share of the wall time of all starts that went into updates that still count."""
        return self.share("updates")

    def share(self, use: Use) -> float:
        """Of the wall time of all starts; 0 before any time has passed."""
        return self.milliseconds[use] / self.total if self.total else 0.0

    def chip_hours(self, use: Use) -> float:
        """Hours times chips."""
        return self.chip_milliseconds[use] / 3.6e6


def of_run(run_dir: RunDir) -> Account | None:
    """The account of a run directory; None where it has no row of time (yet).

    Raises:
      RequestError: `time.jsonl` is damaged.
    """
    return account(run_dir.rows("time"))


def account(rows: Sequence[Row]) -> Account | None:
    """What the time of all starts was, from rows as `time.jsonl` holds them; None without rows.

    A start begins at the update in its first row. What an earlier start did past that was redone: all of its loop after
    its last row at or before that update, and the whole of it where the later start began anew.
    """
    starts = [_Start(list(same)) for _, same in groupby(rows, key=lambda row: row["start"])]
    if not starts:
        return None
    milliseconds: dict[Use, int] = dict.fromkeys(get_args(Use), 0)
    chips = dict(milliseconds)
    for index, start in enumerate(starts):
        resumed_at = min((later.first_step for later in starts[index + 1 :]), default=math.inf)
        for use, spent in start.uses(resumed_at, is_first=index == 0).items():
            milliseconds[use] += spent
            chips[use] += spent * start.chips
    down = sum(max(0, later.began - earlier.ended) for earlier, later in pairwise(starts))
    return Account(milliseconds, chips, down, len(starts))


class _Start:
    """One start: its readings, which never go back."""

    def __init__(self, rows: list[Row]):
        self.chips = int(rows[0]["chips"])
        self.readings: list[tuple[float, dict[str, int]]] = []  # step, milliseconds by key
        reading = dict.fromkeys(KEYS, 0)
        for row in rows:
            reading = {key: max(before, round(1000 * row[key])) for key, before in reading.items()}
            self.readings.append((row["step"], reading))
        self.first_step, first = self.readings[0]
        self.began = _moment(rows[0]) - sum(first.values())
        self.ended = max(map(_moment, rows))

    def uses(self, resumed_at: float, is_first: bool) -> dict[Use, int]:
        """Its milliseconds by use, where a later start went on from update `resumed_at` (inf: none did)."""
        whole = self.readings[-1][1]
        kept = dict.fromkeys(LOOP, 0)
        for step, reading in self.readings:
            if step <= resumed_at and resumed_at > 0:
                kept = {key: reading[key] for key in LOOP}
        before = sum(whole[key] for key in BEFORE)
        uses: dict[Use, int] = {
            "updates": kept["updates"],
            "data": kept["data"],
            "eval": kept["eval"],
            "save": kept["save"],
            "redone": sum(whole[key] for key in LOOP) - sum(kept.values()),
            "ending": whole["ending"],
        }
        if is_first:
            return uses | {"startup": before, "compile": whole["compile"]}
        return uses | {"restarts": before + whole["compile"]}


class TimeSheet:
    """Keeps the time of one start in `time.jsonl`, and says what the run's goodput is.

    A thread of its own writes, so that neither a long compilation nor a long evaluation leaves a gap: every second at
    first, and in a long start each time that a thousandth of it has passed. Less than that is what a kill can hide.

    Args:
      record: Of the run directory, already rewound.
      earlier: The rows of time that are there.
      chips: That this start computes on.
      reading: The `step` that is done, and by key the seconds that this start has taken until now.
    """

    def __init__(self, record: Record, earlier: Sequence[Row], chips: int, reading: Callable[[], Row]):
        self._record = record
        self._start = {"start": 1 + int(earlier[-1]["start"]) if earlier else 1, "chips": chips}
        self._reading = reading
        first = self._row()
        before = account([*earlier, {**first, **dict.fromkeys(KEYS, 0)}])
        assert before is not None, "there is one row"
        self._before = before
        record.time(first)
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="time sheet", daemon=True)
        self._thread.start()

    def note(self) -> None:
        """Appends a row of now."""
        with self._writing:
            self._record.time(self._row())

    def goodput(self) -> float:
        """The share of the wall time of all starts until now that went into updates that still count."""
        now = self._reading()
        total = self._before.total + 1000 * _taken(now)
        return (self._before.milliseconds["updates"] + 1000 * now["updates"]) / total

    def close(self) -> None:
        """Ends the thread and appends the last row of this start."""
        self._closed.set()
        self._thread.join()
        with suppress(RequestError):  # a disk that is full has ended the run with its own message
            self.note()

    def _tick(self) -> None:
        while not self._closed.wait(max(1.0, _taken(self._reading()) / 1000)):
            try:
                self.note()
            except RequestError:  # the next row of the loop meets it too, and that one ends the run
                return

    def _row(self) -> Row:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"time": now, **self._start, **{key: round(value, 3) for key, value in self._reading().items()}}


def _taken(reading: Row) -> float:
    """Seconds since the start began."""
    return sum(reading[key] for key in KEYS)


def _moment(row: Row) -> int:
    """The time of a row in milliseconds since 1970."""
    return round(1000 * datetime.fromisoformat(row["time"]).timestamp())
