"""The training loop."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.config.root import Config
from olmo_hydra.data.loader import Batch
from olmo_hydra.hardware.flops import mfu
from olmo_hydra.hardware.sharding import batch_sharding
from olmo_hydra.train.checkpoint import Checkpoints, Meta
from olmo_hydra.train.state import State
from olmo_hydra.train.step import Inputs, Metrics, Step
from olmo_hydra.train.stop import StopRequest
from olmo_hydra.train.timer import Timer


class Tracker(Protocol):
    """What the loop tells the record."""

    def metrics(self, row: dict[str, Any]) -> None: ...
    def throughput(self, row: dict[str, Any]) -> None: ...
    def event(self, kind: str, **fields: Any) -> None: ...
    def sync(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop is assembled from."""

    config: Config
    mesh: Mesh
    step: Step
    schedule: Callable[[int], float]
    batches: Iterator[Batch]
    checkpoints: Checkpoints
    meta: Meta
    tracker: Tracker
    evaluate: Callable[[int, State], None]
    stop: StopRequest


def run(parts: Parts, state: State, done: int) -> int:
    """Trains from update `done` to the horizon, `run.stop_at` or a stop request; the state there is saved.

    The order within a step is fixed: update, row of the step before, evaluation, checkpoint. A row is fetched one step
    late, so that the device never waits for it; before an evaluation or a checkpoint everything is caught up, so that
    checkpoint n finds the rows up to n on disk.

    Returns:
      The number of updates done.

    Raises:
      RunFailed: The loss is not finite, or the optimizer skipped `optim.max_consecutive_skips` updates in a row.
    """
    config = parts.config
    horizon = config.train.steps
    assert horizon is not None
    last = min(horizon, config.run.stop_at or horizon)
    log = Log(parts)
    if done == 0:
        parts.evaluate(0, state)

    update = compiled(parts, state) if done < last else parts.step
    log.timer.lap()
    stopping = parts.stop.signal is not None
    while done < last and not stopping:
        batch = next(parts.batches)
        done += 1
        lr = jnp.float32(config.optim.lr * parts.schedule(done))
        state, metrics = update(state, place(Inputs(batch.tokens_BT, batch.labels_BT, batch.segments_BT), parts), lr)
        log.later(done, metrics, batch)
        parts.checkpoints.tell(parts.tracker.event)

        stopping = parts.stop.signal is not None
        evaluates = done == horizon or done % config.eval.every == 0
        saves = done == last or done % config.checkpoint.every == 0 or stopping
        if evaluates or saves:
            log.catch_up()
            with log.timer.paused():
                if evaluates:
                    parts.evaluate(done, state)
                if saves:
                    save(parts, state, done)
    parts.checkpoints.wait(parts.tracker.event)
    return done


def save(parts: Parts, state: State, done: int) -> None:
    """Starts the checkpoint of update `done`, with every row up to it on disk."""
    parts.tracker.sync()
    parts.checkpoints.wait(parts.tracker.event)
    parts.checkpoints.save(done, state, parts.meta)


def place(inputs: Inputs, parts: Parts) -> Inputs:
    """A global batch [B, T] on the devices, each of its micro-batches divided over the mesh."""
    global_batch, seq_len = inputs.tokens.shape
    shape = (parts.config.hardware.accumulation(global_batch), -1, seq_len)
    inputs_ABT = jax.tree.map(lambda array_BT: array_BT.reshape(shape), inputs)
    return jax.device_put(inputs_ABT, batch_sharding(parts.mesh, leading=1))


def compiled(parts: Parts, state: State) -> Step:
    """The update, compiled before the clock starts, with the state donated and its layout pinned."""
    config = parts.config
    timer = Timer()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.jit(parts.step, donate_argnums=0, out_shardings=(shardings, None))
    zeros_BT = np.zeros((config.train.global_batch, config.data.seq_len), np.int32)
    segments_BT = zeros_BT if config.data.document_mask else None
    example = place(Inputs(zeros_BT, zeros_BT, segments_BT), parts)
    options: dict[str, str | bool] = dict(config.hardware.compiler_options)
    lowered = step.lower(state, example, jnp.float32(0))
    try:
        executable = lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if not re.search(r"No such compile option|into flag", str(error)):
            raise
        raise RequestError(
            f"the compiler of {config.hardware.platform.value} refuses them: {str(error).splitlines()[0][:200]}",
            key="hardware.compiler_options",
            value=options,
            instead="options that this back end knows; hardware.compiler_options={} for none",
        ) from error
    parts.tracker.event("compiled", seconds=round(timer.lap(), 3))
    return executable


class Log:
    """Rows of metrics, written one step late."""

    def __init__(self, parts: Parts):
        self.timer = Timer()
        self._parts = parts
        self._pending: tuple[int, Metrics, Batch] | None = None
        self._steps_in_lap = 0

    def later(self, step: int, metrics: Metrics, batch: Batch) -> None:
        """Takes the metrics of a step that may still be running, and writes those of the step before."""
        self.catch_up()
        self._pending = (step, metrics, batch)

    def catch_up(self) -> None:
        """Waits for the pending metrics and writes them."""
        if self._pending is None:
            return
        step, on_device, batch = self._pending
        self._pending = None
        values = {name: value.item() for name, value in jax.device_get(on_device).items()}
        self._steps_in_lap += 1
        wrong = self._wrong(step, values, batch)
        config = self._parts.config
        if wrong is None and step % config.tracking.log_every and step not in (1, config.train.steps):
            return
        per_step = config.train.global_batch * config.data.seq_len
        self._parts.tracker.metrics({"step": step, "tokens": step * per_step, **values})
        seconds, self._steps_in_lap, steps = self.timer.lap(), 0, self._steps_in_lap
        rate = steps * per_step / seconds
        hardware = config.hardware
        use = mfu(config.model, config.data.seq_len, rate, hardware.devices, hardware.peak_tflops)
        self._parts.tracker.throughput(
            {"step": step, "seconds": seconds / steps, "tokens_per_second": rate, "mfu": use}
        )

        if wrong is not None:
            raise RunFailed(wrong)

    def _wrong(self, step: int, values: dict[str, Any], batch: Batch) -> str | None:
        """Why the run has to stop: an update that is not finite was made, or too many in a row were skipped."""
        skipped = values.get("skipped", 0)
        if skipped:
            self._parts.tracker.event("skipped", step=step, loss=values["loss"], grad_norm=values["grad_norm"])
        finite = math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])
        where = f"at step {step} (loss {values['loss']}, gradient norm {values['grad_norm']}, "
        where += f"instances {batch.instances_B[:8].tolist()} ...)"
        if not finite and not skipped:
            return f"the loss or its gradient is not finite {where}; optim=skip_step_adamw skips such updates"
        limit = self._parts.config.optim.skip_limit
        if limit is not None and values["consecutive_skips"] >= limit:
            return f"{limit} updates in a row were skipped, the last {where}"
        return None
