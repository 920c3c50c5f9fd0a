"""`train.skip_batches`: batches that are read and not trained on."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olmo_hydra.hardware.sharding import token_sharding
from olmo_hydra.optim import schedules
from olmo_hydra.train import loop
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.step import Inputs
from tests.train.test_loop import SEED, SMALL, STEPS, B, History, Made, T, trained
from tests.train.tiny import data_of, program

RANGES = "train.skip_batches=[[3,5],[12,12]]"
PASSED_OVER = {3, 4, 5, 12}


@pytest.fixture(scope="module")
def made() -> Made:
    _, found = program(*SMALL, RANGES)
    return Made.of(found)


@pytest.fixture(scope="module")
def unbroken(made, tmp_path_factory: pytest.TempPathFactory) -> History:
    done, history = trained(made, tmp_path_factory.mktemp("unbroken"), RANGES, "checkpoint.every=2")
    assert done == STEPS
    return history


def assert_same_bits(left, right) -> None:
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_state_is_that_of_an_optimizer_that_never_saw_the_batches(made, unbroken: History) -> None:
    """By hand, with the loop's executable: the other batches, each at the rate of its own number."""
    config = made.program.config
    schedule = schedules.build(config.schedule)
    mesh = made.program.mesh
    reading = Reading(config, data_of(10**6), mesh, {})
    parts: Any = SimpleNamespace(
        config=config, mesh=mesh, update=lambda: made.update, reading=reading, tracker=History()
    )
    state = made.copied()
    step = loop.compiled(parts)
    for n in sorted(set(range(1, STEPS + 1)) - PASSED_OVER):
        tokens_BT = np.random.default_rng([SEED, n - 1]).integers(0, 257, (B, T)).astype(np.int32)
        inputs = loop.place(Inputs(tokens_BT, np.roll(tokens_BT, -1, axis=1), None), token_sharding, parts)
        state, metrics = step(state, inputs, jnp.float32(config.optim.lr * schedule(n)))
        row = unbroken.rows[n - 1]
        assert (row["loss"], row["lr"]) == (metrics["loss"].item(), metrics["lr"].item()) and row["skipped"] == 0
    assert_same_bits(unbroken.state, state)
    assert unbroken.state is not None and unbroken.state.opt_state.inner[1].steps == STEPS - len(PASSED_OVER)
    assert unbroken.state.opt_state.rule.window.counted_W.sum() == STEPS - len(PASSED_OVER)


def test_their_rows_have_no_numbers_of_training_and_all_of_the_data(made, unbroken: History) -> None:
    assert [row["step"] for row in unbroken.rows] == list(range(1, STEPS + 1))
    assert {row["step"] for row in unbroken.rows if "batch_skipped" in row} == PASSED_OVER
    schedule = schedules.build(made.program.config.schedule)
    for row in unbroken.rows:
        n = row["step"]
        assert row["tokens"] == row["data/tokens/text"] == n * B * T and row["data/seen_fraction"] == n * B / 10**6
        assert row["lr"] == np.float32(made.program.config.optim.lr * schedule(n))
        nothing = {name for name in ("loss", "z_loss", "grad_norm", "param_norm") if row[name] is None}
        assert len(nothing) == 4 * (n in PASSED_OVER)
        assert row.get("batch_skipped", 0) == (n in PASSED_OVER)
    assert [timing["step"] for timing in unbroken.timings] == sorted(set(range(1, STEPS + 1)) - PASSED_OVER)
    assert unbroken.steps("eval") == [0, 5, 10, 12] and unbroken.steps("save") == [2, 4, 6, 8, 10, 12]


def test_the_state_does_not_change_within_a_range(made, tmp_path) -> None:
    _, before = trained(made, tmp_path / "before", RANGES, "run.stop_at=2", "checkpoint.every=12")
    _, after = trained(made, tmp_path / "after", RANGES, "run.stop_at=5", "checkpoint.every=12")
    assert_same_bits(before.state, after.state)


@pytest.mark.parametrize("pause", [2, 3, 4, 5])
def test_a_resume_at_or_in_a_range_changes_no_number(made, unbroken: History, tmp_path, pause: int) -> None:
    _, first = trained(made, tmp_path, RANGES, f"run.stop_at={pause}", "checkpoint.every=12")
    done, second = trained(made, tmp_path, RANGES, "checkpoint.every=12", done=pause)
    assert done == STEPS and first.rows + second.rows == unbroken.rows
    assert_same_bits(second.state, unbroken.state)


def test_thinned_rows_time_the_updates_that_were_made(made, tmp_path) -> None:
    _, history = trained(made, tmp_path, RANGES, "tracking.log_every=4")
    assert history.steps("row") == [1, 4, 8, 12]
    assert [timing["step"] for timing in history.timings] == [1, 4, 8, 12]
