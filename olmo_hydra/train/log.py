"""Rows of a run's metrics, and when they say that it has to stop."""

from typing import Any

import jax

from olmo_hydra.data.loader import Batch
from olmo_hydra.hardware.flops import mfu
from olmo_hydra.train.ledger import Found, examples
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.skipped import Streak
from olmo_hydra.train.step import Metrics


class Log:
    """Rows of metrics, written one step late."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._pending: tuple[int, Metrics, Found, Batch] | None = None
        self._steps_in_lap = 0  # that made an update
        self._streak = Streak(parts)
        self._is_first = True

    def later(self, step: int, metrics: Metrics, found: Found, batch: Batch) -> None:
        """Takes the metrics of a step that may still be running, and writes those of the step before."""
        self.catch_up()
        self._pending = (step, metrics, found, batch)

    def catch_up(self) -> None:
        """Waits for the pending metrics and writes them.

        Raises:
          RunFailed: Too many updates in a row were skipped.
        """
        if self._pending is None:
            return
        step, *on_device, batch = self._pending
        self._pending = None
        metrics, found = jax.device_get(on_device)
        self._parts.clock.step = step
        if self._is_first:
            self._first_update()
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

    def _first_update(self) -> None:
        """Tells what it took from the start of the process to the first update that this start has finished."""
        self._is_first = False
        reading = self._parts.clock.reading()
        step, total = reading.pop("step"), sum(reading.values())
        seconds = {name: round(value, 3) for name, value in reading.items() if value}
        self._parts.tracker.event("first_update", step=step, seconds=round(total, 3), **seconds)

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
