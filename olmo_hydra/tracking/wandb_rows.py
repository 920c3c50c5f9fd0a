"""A run's rows as W&B gets them, live or later: under the same names, one row a step."""

from typing import Any

from olmo_hydra.tracking.documents import as_written
from olmo_hydra.tracking.history import starts_of
from olmo_hydra.tracking.run_dir import Kind, RunDir

Row = dict[str, Any]
STEP = "train/step"  # the x axis of all charts


def named(kind: Kind, row: Row) -> Row:
    """The numbers that W&B gets of a row of the record, null where they are not finite; of samples, nothing.

    `train/<name>` of metrics, and as it is what has a group (`data/epoch`); `perf/<name>` of throughput;
    `eval/bits_per_byte` and `eval/<domain>/bits_per_byte` of held-out text; a baseline under its suite's name.
    """
    if kind == "metrics":
        numbers = {name if "/" in name else f"train/{name}": value for name, value in row.items() if name != "step"}
    elif kind == "throughput":
        numbers = {f"perf/{name}": value for name, value in row.items() if name != "step"}
    elif row["suite"] == "samples":
        return {}
    else:
        suite = "eval" if row["suite"] == "heldout" else row["suite"]
        domains = {
            f"{suite}/{name}/bits_per_byte": domain.get("bits_per_byte") for name, domain in row["domains"].items()
        }
        numbers = {f"{suite}/bits_per_byte": row.get("bits_per_byte"), **domains}
    return numbers


def finite(row: Row) -> Row:
    """The row without its nulls, which the client would store as text."""
    return {name: value for name, value in row.items() if value is not None}


def history(run_dir: RunDir) -> list[Row]:
    """What W&B has to hold of a run: one row a step, ascending, each with its `train/step`.

    A last step whose rows are not all there, as its writer was killed between them, is left out: the run makes it anew
    when it goes on, and W&B takes a step once.

    Raises:
      RequestError: The record is damaged.
    """
    merged: dict[int, Row] = {}
    kinds: tuple[Kind, ...] = ("metrics", "throughput", "evals")
    for kind in kinds:
        for row in run_dir.rows(kind):
            merged.setdefault(row["step"], {STEP: row["step"]}).update(named(kind, row))
    ascending = [row for _, row in sorted(merged.items())]
    whole = ascending[:-1] if ascending and _is_cut(run_dir, ascending) else ascending
    return [finite(row) for row in whole]


def _is_cut(run_dir: RunDir, rows: list[Row]) -> bool:
    """Whether a row of the last step is missing: its timings, or the evaluation that was due."""
    last = rows[-1]
    if last[STEP] == 0:
        return "baseline_trigram/bits_per_byte" not in last
    is_update = "train/tokens" in last and "train/batch_skipped" not in last  # what was passed over takes no time
    if is_update and "perf/seconds" not in last:
        return True
    starts = starts_of(run_dir)
    if not starts or "eval/bits_per_byte" not in rows[0]:
        return False
    with as_written(run_dir.provenance, "the cadence of evaluation"):
        is_due = last[STEP] % starts[-1]["operations"]["eval"]["every"] == 0
    return is_due and "eval/bits_per_byte" not in last
