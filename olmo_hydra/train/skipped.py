"""Updates in a row that were skipped: what is told of each, and what is left of the run when they are too many.

What their batches held: `olmo_hydra.cli.skipped`; the page on it: `olmo_hydra.report.skipped`.
"""

import math
from typing import Any

import jax

from olmo_hydra.config.errors import RunFailed
from olmo_hydra.tracking import checkpoints as on_disk
from olmo_hydra.train.parts import Parts

Row = dict[str, Any]


class Streak:
    """The skipped updates that the last one made ends, if any. An update that was never tried neither ends nor adds.

    While it lasts the newest checkpoint before it is spared, whatever the config says: one cannot go back further.

    Attributes:
      is_too_long: Whether it has `optim.max_consecutive_skips` updates.

    Args:
      parts: Of the run; `parts.skipped` are the updates of the streak that lead up to the state it starts from.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._rows = list(parts.skipped)
        self.is_too_long = False
        if self._rows:
            parts.checkpoints.keep_before(self._rows[0]["step"])

    def take(self, step: int, values: Row) -> None:
        """The numbers of an update; of a skipped one, the event `skipped`."""
        if "batch_skipped" in values:
            return
        if not values["skipped"]:
            if self._rows:
                self._rows = []
                self._parts.checkpoints.keep_before(None)
            return
        config = self._parts.config.optim
        row: Row = {"step": step, **{name: _finite(values[name]) for name in ("loss", "grad_norm", "lr")}}
        row |= {"why": why(values), "instances": self._parts.instances(step - 1).tolist()}
        self._parts.tracker.event("skipped", **row)
        if not self._rows:
            self._parts.checkpoints.keep_before(step)
        self._rows.append(row)
        self.is_too_long = values["consecutive_skips"] >= config.max_consecutive_skips

    def failure(self) -> RunFailed:
        """What ends the run. Sets aside the checkpoints that were saved within the streak: the run stands before it."""
        parts, (first, *_, last) = self._parts, (self._rows[0], *self._rows)
        parts.checkpoints.wait(parts.tracker.event)
        saved = on_disk.steps(parts.checkpoints.folder)
        before = max((step for step in saved if step < first["step"]), default=None)
        within = [step for step in saved if step >= first["step"]]
        if jax.process_index() == 0:
            for step in within:
                parts.checkpoints.set_aside(step, "skipped")
        return RunFailed(
            "\n  ".join(
                [
                    f"{parts.config.optim.max_consecutive_skips} updates in a row were skipped "
                    "(optim.max_consecutive_skips)",
                    f"first:   {said(first)}",
                    f"last:    {said(last)}",
                    "batches: skipped.html in the run directory shows what was in them",
                    f"stands:  {_stands(before, within)}",
                    *_ways_on(parts, first["step"], last["step"], before),
                ]
            ),
            first=first["step"],
            last=last["step"],
            checkpoint=before,
            why=first["why"],
        )


def why(values: Row) -> str:
    """Why an update was skipped, from the numbers of its row."""
    bad = {"loss": values["loss"], "gradient norm": values["grad_norm"]}
    if spoilt := [f"{name} {value}" for name, value in bad.items() if not math.isfinite(value)]:
        return f"not finite: {', '.join(spoilt)}"
    scores = values["loss_z"], values["grad_norm_z"]
    if not all(map(math.isfinite, scores)):
        return "the window of the skip rule holds a value that is not finite"
    return f"outlier: loss {scores[0]:.3g}, gradient norm {scores[1]:.3g} deviations above the mean"


def said(row: Row) -> str:
    """An update of a streak in a few words."""
    numbers = {"loss": row["loss"], "gradient norm": row["grad_norm"]}
    shown = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
    return f"update {row['step']}, {'; '.join([', '.join(shown), row['why']] if shown else [row['why']])}"


def without(skip_batches: list[list[int]], first: int, last: int) -> list[list[int]]:
    """`train.skip_batches` with the updates from `first` to `last` as well."""
    return sorted([[first, last], *(one for one in skip_batches if one[1] < first or one[0] > last)])


def _stands(before: int | None, within: list[int]) -> str:
    newest = "no checkpoint from before them" if before is None else f"at checkpoint {before}, the newest before them"
    return f"{newest}; set aside: {', '.join(f'{step}.skipped' for step in within)}" if within else newest


def _ways_on(parts: Parts, first: int, last: int, before: int | None) -> list[str]:
    origin = "from the start" if before is None else f"from update {before}"
    ways = [f"again:   the same command goes on {origin}, and with the same numbers to the same end"]
    if first > 1:
        ways.append(f"pause:   run.stop_at={first - 1} ends before them")
    ranges = without(parts.config.train.skip_batches, first, last)
    listed = ",".join(f"[{a},{b}]" for a, b in ranges)
    return [*ways, f"without: train.skip_batches=[{listed}] is a run of its own that leaves those batches out"]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
