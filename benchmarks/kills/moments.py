"""Moments at which a run is killed: each sees in the files of the run when it has come."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random

from benchmarks.kills.view import View

Due = Callable[[], bool]

PREPARED = (
    *("data/*.partial", "data/*.partial/texts/*.text*", "data/*.partial/texts/*.read.json"),
    *("data/*.partial/*.parts/*.kept", "data/*.partial/*/tokenizer*", "data/*.partial/*.parts/*.encoded.json"),
    *("data/*.partial/*.parts/grams*", "data/*.partial/*.parts/*.shared", "data/*.partial/*/train/*/*"),
    *("data/*.partial/*/manifest.json", "data/*/manifest.json", "packing/*", "order/*"),
)
ROWS = ("metrics.jsonl", "throughput.jsonl", "evals.jsonl", "time.jsonl", "events.jsonl")
FIRST = (".lock", "logs", "overrides.yaml", "config.yaml", "metrics.jsonl", "provenance.json", "events.jsonl")


@dataclass(frozen=True)
class Moment:
    """When to kill.

    Attributes:
      name: For the tally.
      watch: Begins to watch a start of the run; what it gives says whether the moment has come.
      delay: The most seconds from there to the kill; it is drawn.
      needs: What there has to be before that start: "nothing", a cache without prepared data (`cold`), or a checkpoint.
    """

    name: str
    watch: Callable[[View, Random, int], Due]
    delay: float
    needs: str = "nothing"


def _at_once(view: View, rng: Random, steps: int) -> Due:
    return lambda: True


def _prepared(view: View, rng: Random, steps: int) -> Due:
    pattern = rng.choice(PREPARED)
    return lambda: view.cached(pattern) > 0


def _first_file(view: View, rng: Random, steps: int) -> Due:
    name = rng.choice(FIRST)
    before = view.stamp(name)
    return lambda: view.stamp(name) != before


def _update(view: View, rng: Random, steps: int) -> Due:
    wanted = view.step() + rng.randint(1, steps // 4)
    return lambda: _restarted(view) and view.step() >= wanted


def _save(view: View, rng: Random, steps: int) -> Due:
    return _nth_new(view.saving, rng)


def _sealed(view: View, rng: Random, steps: int) -> Due:
    return _nth_new(view.sealed, rng)


def _whole(view: View, rng: Random, steps: int) -> Due:
    return _nth_new(view.steps, rng)


def _nth_new(names: Callable[[], AbstractSet[object]], rng: Random) -> Due:
    """The first or the second name, as it is drawn, that comes to those that are there now."""
    before, nth = names(), rng.randint(1, 2)
    seen: set[object] = set()

    def due() -> bool:
        seen.update(names() - before)
        return len(seen) >= nth

    return due


def _removed(view: View, rng: Random, steps: int) -> Due:
    seen = view.steps()

    def due() -> bool:
        now = view.steps()
        gone = bool(seen - now) or bool(view.removing())
        seen.update(now)
        return gone

    return due


def _evaluation(view: View, rng: Random, steps: int) -> Due:
    before = view.step()

    def due() -> bool:
        step = view.step()
        return step > before and step % EVALUATES_EVERY == 0

    return due


def _first_evaluation(view: View, rng: Random, steps: int) -> Due:
    before = view.stamp("events.jsonl")
    return lambda: view.stamp("events.jsonl") != before


def _row(view: View, rng: Random, steps: int) -> Due:
    name, left = rng.choice(ROWS), [rng.randint(1, 8)]
    last = [view.stamp(name)]

    def due() -> bool:
        now = view.stamp(name)
        left[0] -= now != last[0]
        last[0] = now
        return left[0] <= 0

    return due


def _rewind(view: View, rng: Random, steps: int) -> Due:
    files = {name: view.stamp(name)[0] for name in ROWS}
    return lambda: any(view.stamp(name)[0] not in (0, inode) for name, inode in files.items())


def _last_update(view: View, rng: Random, steps: int) -> Due:
    return lambda: view.step() == steps


def _finished(view: View, rng: Random, steps: int) -> Due:
    return lambda: "finished" in view.events()


def _report(view: View, rng: Random, steps: int) -> Due:
    before = view.stamp("report.html")
    return lambda: view.stamp("report.html") != before or any(".report.html" in name for name in view.names())


def _wandb(view: View, rng: Random, steps: int) -> Due:
    before = view.names("wandb")
    return lambda: view.names("wandb") != before


def _restarted(view: View) -> bool:
    """Whether this start goes on: its rewind is over, and rows that are there are its own."""
    events = view.events()
    return bool(events) and events[-1] not in ("started", "resumed")


EVALUATES_EVERY = 12
MOMENTS = (
    Moment("first second", _at_once, 1.0),
    Moment("imports, config", _at_once, 6.0),
    Moment("preparation of data", _prepared, 0.05, needs="cold"),
    Moment("first files", _first_file, 0.005),
    Moment("first evaluation", _first_evaluation, 1.0),
    Moment("update", _update, 0.02),
    Moment("save: being written", _save, 0.2),
    Moment("save: manifest", _sealed, 0.01),
    Moment("save: renamed", _whole, 0.01),
    Moment("checkpoint removed", _removed, 0.005),
    Moment("evaluation", _evaluation, 0.05),
    Moment("row", _row, 0.0),
    Moment("rewind", _rewind, 0.002, needs="checkpoint"),
    Moment("last evaluation", _last_update, 0.3),
    Moment("end", _finished, 2.0),
    Moment("report", _report, 0.02),
    Moment("W&B's files", _wandb, 0.5),
    Moment("any moment", _at_once, 10.0),
)
