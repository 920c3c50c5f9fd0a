"""The loop: what happens in which order, what a row says, when it stops, and that stopping changes no number."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RunFailed
from olmo_hydra.config.operations import CheckpointConfig
from olmo_hydra.data.loader import Batch
from olmo_hydra.optim import schedules
from olmo_hydra.tracking.checkpoints import Kind, damage, whole, write_manifest
from olmo_hydra.train import clock, loop
from olmo_hydra.train.ahead import Update, compiled
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.profile import Profile
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.state import Program, State
from olmo_hydra.train.step import Step, make_step
from olmo_hydra.train.stop import StopRequest
from tests.train.tiny import TINY, data_of, program

STEPS, B, T = 12, 8, 32
SMALL = (
    *("model.n_layers=1", "model.window_pattern=[full]", "hardware.devices=1", f"train.steps={STEPS}"),
    *("schedule=cosine", "schedule.warmup_steps=4", "schedule.final_fraction=0.1"),
    "+hardware.compiler_options.xla_backend_optimization_level='0'",  # compiles sooner
    *("eval.every=5", "checkpoint.every=4", "tracking.log_every=1", "optim=skip_step_adamw"),
)
META = {"run": "nano-1"}
SEED = int(np.random.default_rng().integers(2**32))


@dataclass
class History:
    """What the loop did, in order; also the tracker it talks to."""

    done: list[tuple[str, int]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    norms: dict[int, float] = field(default_factory=dict)  # of some parameters, by the step of the evaluation
    state: State | None = None  # as saved last

    def metrics(self, row: dict[str, Any]) -> None:
        self.done.append(("row", row["step"]))
        self.rows.append(row)

    def throughput(self, row: dict[str, Any]) -> None:
        self.timings.append(row)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def warning(self, text: str, kind: str, **fields: Any) -> None:
        raise AssertionError(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def sync(self) -> dict[str, Any]:
        self.done.append(("sync", len(self.rows)))
        return {}

    def steps(self, kind: str) -> list[int]:
        return [step for what, step in self.done if what == kind]

    def told(self, kind: str) -> list[int]:
        return [fields["step"] for what, fields in self.events if what == kind]


class SeenCheckpoints(Checkpoints):
    def __init__(self, folder: Path, history: History, cfg: CheckpointConfig):
        super().__init__(folder, cfg)
        self._history = history

    def save(self, step: int, state: State, *others: Any, permanent: bool = True) -> None:
        self._history.done.append(("save", step))
        self._history.state = jax.tree.map(np.array, state)
        super().save(step, state, *others, permanent=permanent)


@dataclass(frozen=True)
class Made:
    """A program with its update and initial state, each compiled once."""

    program: Program
    step: Step
    update: Update
    state: State

    @classmethod
    def of(cls, program: Program) -> "Made":
        step = make_step(program)
        return cls(program, step, compiled(program, step), program.init())

    def copied(self) -> State:
        """The initial state, to be given away."""
        return jax.tree.map(jnp.copy, self.state)


@pytest.fixture(scope="module")
def made() -> Made:
    _, found = program(*SMALL)
    return Made.of(found)


def trained(
    made: Made,
    folder: Path,
    *overrides: str,
    done: int = 0,
    stop: StopRequest | None = None,
    during: Callable[[str, int], None] = lambda what, step: None,
    skipped: int = 0,
    skips: Sequence[dict[str, Any]] = (),
) -> tuple[int, History]:
    """Runs the loop from `done`; `during("step" or "eval", n)` is called within step or evaluation n.

    The stream leaves `skipped` batches out.
    """
    config = compose([*TINY, *SMALL, *overrides])
    history = History()

    def batches() -> Iterator[Batch]:
        for n in range(done + skipped, 10**6):
            rng = np.random.default_rng([SEED, n])
            tokens_BT = rng.integers(0, 257, (B, T)).astype(np.int32)
            history.done.append(("batch", n))
            during("step", n + 1)
            yield Batch(
                n=n,
                epoch=1,
                row=n,
                instances_B=np.arange(B * n, B * n + B, dtype=np.uint32),
                tokens_BT=tokens_BT,
                labels_BT=np.roll(tokens_BT, -1, axis=1),
                segments_BT=None,
                by_label_BL=np.full((B, 1), T, np.int32),
                masked_B=np.zeros(B, bool),
            )

    def evaluate(step: int, params: nnx.State) -> Callable[[], None]:
        """It reads the parameters once the loop has gone on, as the devices may."""
        first = jax.tree.leaves(params)[0]
        begun = jnp.square(first).sum()
        history.done.append(("begin", step))

        def written() -> None:
            history.done.append(("eval", step))
            history.norms[step] = begun.item()
            during("eval", step)

        return written

    checkpoints = SeenCheckpoints(folder, history, config.checkpoint)
    try:
        found = made.program
        state = checkpoints.restore(done, found.abstract, found.shardings, META) if done else made.copied()
        reading = Reading(config, data_of(10**6), found.mesh, {})
        if done:
            assert reading.restore(checkpoints.record(done), checkpoints, done, accept_changed=False) is None
        parts = Parts(
            config=config,
            mesh=found.mesh,
            update=lambda: made.update,
            schedule=schedules.build(config.schedule),
            batches=batches(),
            instances=lambda n: np.arange(B * n, B * n + B, dtype=np.uint32),
            skipped=skips,
            reading=reading,
            checkpoints=checkpoints,
            meta=META,
            tracker=history,
            has_heldout=True,
            evaluate=evaluate,
            stop=stop or StopRequest(),
            clock=(time := clock.Clock(began=0.0)),
            profile=Profile(
                config.train.profile, done, config.last_update, folder / "profile", time, history.event, history.note
            ),
        )
        with closing(parts.profile):
            ended = loop.run(parts, state, done)
        assert (checkpoints.choose().step or 0) == (history.steps("save") or [done])[-1]
        return ended, history
    except RunFailed as failure:
        failure.history = history  # type: ignore[attr-defined]
        raise
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def unbroken(made, tmp_path_factory: pytest.TempPathFactory) -> History:
    done, history = trained(made, tmp_path_factory.mktemp("unbroken"))
    assert done == STEPS
    return history


def test_the_order_of_everything(unbroken: History) -> None:
    """Rows come one step late, of evaluations too; a checkpoint finds all rows; what is saved has been synced."""
    expected = "batch 0, begin 0, batch 1, eval 0, row 1, batch 2, row 2, batch 3, row 3, row 4, sync 4, save 4, "
    expected += "batch 4, begin 5, batch 5, row 5, eval 5, batch 6, row 6, batch 7, row 7, row 8, sync 8, save 8, "
    expected += "batch 8, batch 9, row 9, begin 10, batch 10, row 10, eval 10, "
    expected += "batch 11, row 11, begin 12, row 12, eval 12, sync 12, save 12"
    assert ", ".join(f"{what} {step}" for what, step in unbroken.done) == expected
    assert unbroken.told("checkpoint") == [4, 8, 12]
    assert unbroken.told("first_update") == [1]
    assert unbroken.events[0][0] == "compiled" and unbroken.events[0][1]["seconds"] > 0


def test_an_evaluation_sees_the_parameters_of_its_step(made, unbroken: History, tmp_path) -> None:
    """Also at step 0, which update 1 has passed, and where the next update took the state before anyone had waited."""
    done, paused = trained(made, tmp_path, "run.stop_at=5")
    assert done == 5 and paused.state is not None
    saved = jnp.square(jax.tree.leaves(paused.state.params)[0]).sum().item()
    assert unbroken.norms[0] == jnp.square(jax.tree.leaves(made.state.params)[0]).sum().item()
    assert unbroken.norms[5] == paused.norms[5] == saved != unbroken.norms[0]


def test_what_a_row_says(unbroken: History) -> None:
    config = compose([*TINY, *SMALL])
    schedule = schedules.build(config.schedule)
    for row in unbroken.rows:
        assert row["tokens"] == row["step"] * B * T == row["data/tokens/text"]
        assert row["data/epoch"] == 1 and row["data/repeated_fraction"] == row["data/masked_tokens"] == 0
        assert row["data/seen_fraction"] == row["step"] * B / 10**6
        assert row["lr"] == np.float32(config.optim.lr * schedule(row["step"]))
        assert type(row["loss"]) is float and type(row["skipped"]) is int, "plain numbers, as JSON holds them"
    assert unbroken.rows[0]["loss"] == pytest.approx(np.log(config.model.padded_vocab), abs=0.1)
    factors = [unbroken.rows[step - 1]["lr"] / config.optim.lr for step in (1, 4, 8, 12)]
    assert factors == pytest.approx([0.25, 1, 0.55, 0.1], rel=1e-6)  # warm-up, peak, half of the cosine, floor
    assert [row["step"] for row in unbroken.timings] == list(range(1, STEPS + 1))
    for timing in unbroken.timings:
        assert timing["seconds"] * timing["tokens_per_second"] == pytest.approx(B * T) and timing["mfu"] is None


def test_the_clock_leaves_out_compiling_and_pauses(made, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    time = SimpleNamespace(now=0.0)

    def perf_counter() -> float:
        time.now += 1e-6
        return time.now

    def during(what: str, step: int) -> None:
        time.now += 1.0 if what == "step" else 1000.0

    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=perf_counter))
    _, history = trained(made, tmp_path, "tracking.log_every=4", during=during)
    steps = np.diff([0, *(timing["step"] for timing in history.timings)])
    seconds = [timing["seconds"] for timing in history.timings]
    assert np.dot(steps, seconds) == pytest.approx(STEPS, abs=0.01)


def test_rows_every_so_often_and_the_first_and_last(made, unbroken: History, tmp_path) -> None:
    _, history = trained(made, tmp_path, "tracking.log_every=5")
    assert history.rows == [unbroken.rows[step - 1] for step in (1, 5, 10, 12)]


def test_stop_at_and_resume_change_no_number(made, unbroken: History, tmp_path) -> None:
    """The pause falls between rows: it must not add one, nor an evaluation."""
    done, first = trained(made, tmp_path, "run.stop_at=6", "tracking.log_every=4")
    assert done == 6 and first.steps("save") == [4, 6] and first.steps("eval") == [0, 5]
    done, second = trained(made, tmp_path, "tracking.log_every=4", done=6)
    assert done == STEPS and second.steps("save") == [8, 12] and second.steps("eval") == [10, 12]
    assert second.told("first_update") == [7]
    assert first.rows + second.rows == [unbroken.rows[step - 1] for step in (1, 4, 8, 12)]
    for left, right in zip(jax.tree.leaves(second.state), jax.tree.leaves(unbroken.state), strict=True):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()


def test_nothing_is_left_to_do(made, tmp_path) -> None:
    trained(made, tmp_path, "run.stop_at=4")
    done, history = trained(made, tmp_path, "run.stop_at=4", done=4)
    assert done == 4 and history.done == [] and not history.events
    done, history = trained(made, tmp_path, "run.stop_at=3", done=4)
    assert done == 4 and history.done == [] and not history.events


def test_where_a_run_shall_end_its_checkpoint_stays(made, tmp_path) -> None:
    """Also if that was no end when it was saved."""
    often = ("checkpoint.every=12", "checkpoint.ephemeral_every=2")
    trained(made, tmp_path, *often, "run.stop_at=5")
    folder = tmp_path
    write_manifest(folder / "5", 5, Kind.ephemeral)  # as a signal after update 5 would have had it
    trained(made, tmp_path, *often, "run.stop_at=5", done=5)
    assert whole(folder)[5].kind is Kind.permanent and damage(folder / "5") is None


def test_a_stream_that_is_one_batch_ahead_fails_before_it_trains(made, tmp_path) -> None:
    with pytest.raises(RunFailed, match="gave batch 1 where update 1 trains on batch 0"):
        trained(made, tmp_path, skipped=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_stop_request_saves_the_step_it_falls_in(made, unbroken: History, tmp_path, number) -> None:
    def during(what: str, step: int) -> None:
        if (what, step) == ("step", 7):
            signal.raise_signal(number)

    with StopRequest() as stop:
        done, history = trained(made, tmp_path, during=during, stop=stop)
    assert done == 7 and history.steps("save") == [4, 7] and history.steps("eval") == [0, 5]
    assert history.rows == unbroken.rows[:7] and history.done[-2:] == [("sync", 7), ("save", 7)]
    assert history.told("checkpoint") == [4, 7], "on disk before the loop returns"


def test_a_stop_request_before_the_first_step(made, tmp_path) -> None:
    with StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGTERM)
        done, history = trained(made, tmp_path, stop=stop)
    assert done == 0 and not history.steps("batch") and not history.steps("save")
