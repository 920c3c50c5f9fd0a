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
from olmo_hydra.train.ledger import Found, Read, examples
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.state import State
from olmo_hydra.train.step import Inputs, Metrics, Step
from olmo_hydra.train.stop import StopRequest
from olmo_hydra.train.timer import Timer

Tree = Any


class Tracker(Protocol):
    """What the loop tells the record."""

    def metrics(self, row: dict[str, Any]) -> None: ...
    def throughput(self, row: dict[str, Any]) -> None: ...
    def event(self, kind: str, **fields: Any) -> None: ...
    def warning(self, text: str, kind: str, **fields: Any) -> None: ...
    def sync(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop is assembled from."""

    config: Config
    mesh: Mesh
    step: Step
    schedule: Callable[[int], float]
    batches: Iterator[Batch]
    reading: Reading
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
      RunFailed: The loss is not finite, the optimizer skipped `optim.max_consecutive_skips` updates in a row, or the
        data came in another order than by number.
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
        if batch.n != done:
            raise RunFailed(f"the loader gave batch {batch.n} where update {done + 1} trains on batch {done}")
        done += 1
        lr = jnp.float32(config.optim.lr * parts.schedule(done))
        inputs = Inputs(batch.tokens_BT, batch.labels_BT, batch.segments_BT)
        read = Read(batch.instances_B, batch.by_label_BL, batch.masked_B)
        inputs, read = place((inputs, read), parts)
        state, metrics = update(state, inputs, lr)
        found = parts.reading.ledger.mark(read, begins_epoch=batch.row == 0)
        log.later(done, metrics, found, batch)
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
                    save(parts, state, done, batch)
    parts.checkpoints.wait(parts.tracker.event)
    return done


def save(parts: Parts, state: State, done: int, last: Batch) -> None:
    """Starts the checkpoint of update `done`, which consumed batch `last`, with every row up to it on disk."""
    parts.tracker.sync()
    parts.checkpoints.wait(parts.tracker.event)
    parts.checkpoints.save(done, state, parts.meta, parts.reading.record(last), parts.reading.ledger.words_W)


def place(arrays: Tree, parts: Parts) -> Tree:
    """Arrays over a global batch, [B, ...], on the devices as [A, B/A, ...]: micro-batches divided over the mesh."""
    micro_batches = parts.config.hardware.accumulation(parts.config.train.global_batch)
    divided = jax.tree.map(lambda array_B: array_B.reshape(micro_batches, -1, *array_B.shape[1:]), arrays)
    return jax.device_put(divided, batch_sharding(parts.mesh, leading=1))


def compiled(parts: Parts, state: State) -> Step:
    """The update, compiled before the clock starts, with the state donated and its layout pinned; the ledger's too."""
    config, ledger = parts.config, parts.reading.ledger
    timer = Timer()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.jit(parts.step, donate_argnums=0, out_shardings=(shardings, None))
    B, T, L = config.train.global_batch, config.data.seq_len, len(ledger.labels)
    zeros_BT = np.zeros((B, T), np.int32)
    inputs = Inputs(zeros_BT, zeros_BT, zeros_BT if config.data.document_mask else None)
    read = Read(np.zeros(B, np.uint32), np.zeros((B, L), np.int32), np.zeros(B, bool))
    inputs, read = place((inputs, read), parts)
    ledger.compile(read)
    options: dict[str, str | bool] = dict(config.hardware.compiler_options)
    lowered = step.lower(state, inputs, jnp.float32(0))
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
        self._pending: tuple[int, Metrics, Found, Batch] | None = None
        self._steps_in_lap = 0

    def later(self, step: int, metrics: Metrics, found: Found, batch: Batch) -> None:
        """Takes the metrics of a step that may still be running, and writes those of the step before."""
        self.catch_up()
        self._pending = (step, metrics, found, batch)

    def catch_up(self) -> None:
        """Waits for the pending metrics and writes them."""
        if self._pending is None:
            return
        step, *on_device, batch = self._pending
        self._pending = None
        metrics, found = jax.device_get(on_device)
        values = {name: value.item() for name, value in metrics.items()} | self._of_data(step, found, batch)
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

    def _of_data(self, step: int, found: Found, batch: Batch) -> dict[str, Any]:
        """What the ledger says; of the first repeats of an epoch, a warning."""
        ledger = self._parts.reading.ledger
        is_first = found.repeated and not (ledger.totals.epoch == batch.epoch and ledger.totals.repeated)
        row = ledger.count(batch.epoch, self._parts.config.train.global_batch, found)
        if is_first:
            repeated, again = int(found.repeated), examples(found)
            text = f"update {step} read {repeated} instances that epoch {batch.epoch} had read before: {again} ..."
            fields = {"step": step, "epoch": batch.epoch, "repeated": repeated, "examples": again}
            self._parts.tracker.warning(text, "data_repeated", **fields)
        return row

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
