"""Skipped updates in the loop: what is told of each, what is spared, and how too many in a row end a run."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olmo_hydra.config.errors import RunFailed
from olmo_hydra.optim import schedules
from olmo_hydra.tracking import checkpoints as on_disk
from olmo_hydra.train.ahead import compiled
from olmo_hydra.train.skipped import said, why, without
from olmo_hydra.train.state import State
from tests.train.test_loop import SMALL, STEPS, B, History, Made, trained
from tests.train.tiny import program


@pytest.fixture(scope="module")
def adamw() -> Made:
    _, found = program(*SMALL, "optim=adamw")
    return Made.of(found)


def spoilt(made: Made, bad: set[int]) -> Made:
    """The same updates, but that some see parameters that are not finite, so that loss and gradients are neither.

    Which ones is read off the learning rate that the loop gives: the schedule of `SMALL` repeats none.
    """
    rates = jnp.array([rate_of(made, step) for step in sorted(bad)], jnp.float32)

    def step(state, inputs, lr):
        hit = jnp.where((lr == rates).any(), jnp.nan, 1.0)
        params = jax.tree.map(lambda leaf: leaf * hit.astype(leaf.dtype), state.params)
        after, metrics = made.step(State(params, state.opt_state), inputs, lr)
        kept = jax.tree.map(lambda new, old: jnp.where(hit == 1, new, old), after.params, state.params)
        return State(kept, after.opt_state), metrics

    return Made(made.program, step, compiled(made.program, step), made.state)


def rate_of(made: Made, step: int) -> np.float32:
    config = made.program.config
    return np.float32(config.optim.lr * schedules.build(config.schedule)(step))


def failed(made: Made, folder: Path, *overrides: str, **more) -> tuple[RunFailed, History]:
    with pytest.raises(RunFailed) as failure:
        trained(made, folder, "optim=adamw", *overrides, **more)
    return failure.value, failure.value.history  # type: ignore[attr-defined]


def test_a_skipped_update_is_told_with_all_instances_of_its_batch(adamw, tmp_path) -> None:
    done, history = trained(spoilt(adamw, {7}), tmp_path, "optim=adamw")
    assert done == STEPS
    (told,) = [fields for kind, fields in history.events if kind == "skipped"]
    assert told == {
        "step": 7,
        "loss": None,
        "grad_norm": None,
        "lr": pytest.approx(rate_of(adamw, 7)),
        "why": "not finite: loss nan, gradient norm nan",
        "instances": list(range(6 * B, 7 * B)),
    }
    rows = {row["step"]: row for row in history.rows}
    assert [rows[n]["skipped"] for n in (6, 7, 8)] == [0, 1, 0] and rows[STEPS]["skipped_total"] == 1
    assert math.isnan(rows[7]["loss"]) and math.isfinite(rows[8]["loss"])


def test_too_many_in_a_row_end_the_run_before_the_first_of_them(adamw, tmp_path) -> None:
    """Checkpoints 1 to 4 are sound, 5 and 6 are from within: set aside, and the run goes on from 4, to the same end."""
    bad = spoilt(adamw, set(range(5, STEPS + 1)))
    options = ("optim.max_consecutive_skips=3", "checkpoint.every=1", "checkpoint.keep=1")
    failure, history = failed(bad, tmp_path, *options)
    assert failure.fields == {"first": 5, "last": 7, "checkpoint": 4, "why": "not finite: loss nan, gradient norm nan"}
    assert history.told("skipped") == [5, 6, 7] and history.steps("row") == list(range(1, 8)), "the last one has a row"
    assert on_disk.steps(tmp_path) == [4], "spared although one is to be kept, and a newer one was"
    assert {path.name for path in tmp_path.glob("*.skipped")} == {"6.skipped"}
    message = str(failure)
    for part in (
        "3 updates in a row",
        "update 5, ",
        "update 7, ",
        "checkpoint 4",
        "6.skipped",
        "run.stop_at=4",
        "skipped.html",
    ):
        assert part in message, part
    assert "train.skip_batches=[[5,7]]" in message

    again, replayed = failed(bad, tmp_path, *options, done=4)
    assert again.fields == failure.fields and replayed.told("skipped") == [5, 6, 7]
    assert str(replayed.rows) == str(history.rows[4:]), "nan is not equal to itself"


def test_a_streak_goes_on_after_a_restart_in_the_middle_of_it(adamw, tmp_path) -> None:
    """What was told before the restart is handed in: the same first update, and the checkpoint before it is spared."""
    bad = spoilt(adamw, {5, 6, 7, 8})
    options = ("optim.max_consecutive_skips=4", "checkpoint.every=2", "checkpoint.keep=1")
    _, before = trained(bad, tmp_path, "optim=adamw", *options, "run.stop_at=6")
    skips = [fields for kind, fields in before.events if kind == "skipped"]
    assert [row["step"] for row in skips] == [5, 6] and on_disk.steps(tmp_path) == [4, 6]
    failure, history = failed(bad, tmp_path, *options, done=6, skips=skips)
    assert (failure.fields["first"], failure.fields["last"], failure.fields["checkpoint"]) == (5, 8, 4)
    assert history.told("skipped") == [7, 8] and on_disk.steps(tmp_path) == [4]


def test_a_streak_that_ends_spares_nothing_any_more(adamw, tmp_path) -> None:
    bad = spoilt(adamw, {5, 6})
    options = ("optim.max_consecutive_skips=3", "checkpoint.every=1", "checkpoint.keep=1")
    done, history = trained(bad, tmp_path, "optim=adamw", *options)
    assert done == STEPS and history.told("skipped") == [5, 6] and on_disk.steps(tmp_path) == [STEPS]


def test_no_checkpoint_before_the_first_update(adamw, tmp_path) -> None:
    failure, _ = failed(spoilt(adamw, {1, 2}), tmp_path, "optim.max_consecutive_skips=2", "checkpoint.every=1")
    assert failure.fields["checkpoint"] is None and on_disk.steps(tmp_path) == []
    assert "no checkpoint from before" in str(failure) and "run.stop_at" not in str(failure)


def test_thinned_rows_have_one_of_the_update_that_ends_the_run(adamw, tmp_path) -> None:
    _, history = failed(
        spoilt(adamw, {6, 7}), tmp_path, "optim.max_consecutive_skips=2", "tracking.log_every=5", "checkpoint.every=12"
    )
    assert history.steps("row") == [1, 5, 7] and history.told("skipped") == [6, 7]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loss": 2.5, "grad_norm": math.inf}, "not finite: gradient norm inf"),
        ({"loss": -math.inf, "grad_norm": 1.0}, "not finite: loss -inf"),
        (
            {"loss": 9.0, "grad_norm": 1.0, "loss_z": 12.345, "grad_norm_z": 0.5},
            "outlier: loss 12.3, gradient norm 0.5 deviations above the mean",
        ),
        (
            {"loss": 9.0, "grad_norm": 1.0, "loss_z": math.nan, "grad_norm_z": 0.5},
            "the window of the skip rule holds a value that is not finite",
        ),
    ],
)
def test_why(values, expected) -> None:
    assert why(values) == expected


def test_said() -> None:
    row = {"step": 3, "loss": 2.5, "grad_norm": None, "why": "not finite: gradient norm inf"}
    assert said(row) == "update 3, loss 2.5; not finite: gradient norm inf"
    assert said(row | {"loss": None, "why": "all"}) == "update 3, all"


def test_ranges_to_leave_out_hold_those_that_were_left_out_before() -> None:
    assert without([], 5, 7) == [[5, 7]]
    assert without([[1, 2], [6, 6], [20, 30]], 5, 9) == [[1, 2], [5, 9], [20, 30]]
