"""Rows of a run's metrics, and when they say that it has to stop."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
from flax import nnx

from olmo_hydra.data.loader import Batch
from olmo_hydra.hardware.flops import mfu
from olmo_hydra.train.ledger import Found, examples
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.skipped import Streak
from olmo_hydra.train.step import Metrics


class Log:
    """Rows of metrics and of evaluations, in the order of their steps, written one step late."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._pending: list[tuple[int, Callable[[], None]]] = []
        self._steps_in_lap = 0  # that made an update
        self._streak = Streak(parts)

    def later(self, step: int, metrics: Metrics, found: Found, batch: Batch) -> None:
        """Takes the metrics of a step that may still be running."""
        self._pending.append((step, partial(self._row, step, metrics, found, batch)))

    def evaluation(self, step: int, params: nnx.State) -> None:
        """Has the devices evaluate the parameters after update `step`, of which the row is taken already or, if there
        is one, written.
        """
        with self._parts.clock.spent("eval"):
            write = self._parts.evaluate(step, params)
        self._pending.append((step, partial(self._evaluated, write)))
        self._pending.sort(key=itemgetter(0))

    def catch_up(self) -> None:
        """Waits for what is pending and writes it.

        Raises:
          RunFailed: Too many updates in a row were skipped.
        """
        pending, self._pending = self._pending, []
        for _, write in pending:
            write()

    def first_update(self, step: int, metrics: Metrics) -> None:
        """Waits for the first update of this start, and tells what it took from the start of the process until then."""
        jax.block_until_ready(metrics)
        self._parts.clock.step = step
        reading = self._parts.clock.reading()
        del reading["step"]
        seconds = {name: round(value, 3) for name, value in reading.items() if value}
        self._parts.tracker.event("first_update", step=step, seconds=round(sum(reading.values()), 3), **seconds)

    def _evaluated(self, write: Callable[[], None]) -> None:
        with self._parts.clock.spent("eval"):
            write()

    def _row(self, step: int, metrics: Metrics, found: Found, batch: Batch) -> None:
        metrics, found = jax.device_get((metrics, found))
        self._parts.clock.step = step
        values = {name: value if value is None else value.item() for name, value in metrics.items()}
        values |= self._of_data(step, found, batch)
        self._steps_in_lap += "batch_skipped" not in values
        self._streak.take(step, values)
        config = self._parts.config
        if not self._streak.is_too_long and step % config.tracking.log_every and step not in (1, config.train.steps):
            return
        per_step = config.train.global_batch * config.data.seq_len
        self._parts.tracker.metrics({"step": step, "tokens": step * per_step, **values})
        seconds, self._steps_in_lap, steps = self._parts.clock.lap(), 0, self._steps_in_lap
        if steps:
            rate = steps * per_step / seconds
            hardware = config.hardware
            assert hardware.devices is not None
            use = mfu(config.model, config.data.seq_len, rate, hardware.devices, hardware.chip.of_device("peak_tflops"))
            self._parts.tracker.throughput(
                {"step": step, "seconds": seconds / steps, "tokens_per_second": rate, "mfu": use}
            )
        if self._streak.is_too_long:
            raise self._streak.failure()

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
