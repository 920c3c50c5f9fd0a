"""The training loop."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.config.errors import RunFailed
from olmo_hydra.data.loader import Batch
from olmo_hydra.hardware import compiler
from olmo_hydra.hardware.sharding import batch_sharding
from olmo_hydra.train.ledger import Read
from olmo_hydra.train.log import Log
from olmo_hydra.train.lowering import lower
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.state import State
from olmo_hydra.train.step import Inputs, Step, passed_over

Tree = Any


def run(parts: Parts, state: State, done: int) -> int:
    """Trains from update `done` to the horizon, `run.stop_at` or a stop request; the state there is saved.

    The order within a step is fixed: update, row of the step before, evaluation, checkpoint. A row is fetched one step
    late, so that the device never waits for it; before an evaluation or a checkpoint everything is caught up, so that
    checkpoint n finds the rows up to n on disk.

    Returns:
      The number of updates done.

    Raises:
      RunFailed: `optim.max_consecutive_skips` updates in a row were skipped, or the data came in another order than by
        number.
    """
    config = parts.config
    horizon = config.train.steps
    assert horizon is not None
    last = min(horizon, config.run.stop_at or horizon)
    log, clock = Log(parts), parts.clock
    if done == last:
        parts.checkpoints.make_permanent(done)
    clock.turn_to("updates")
    if done == 0:
        with clock.spent("eval"):
            parts.evaluate(0, state)

    with clock.spent("compile"):
        update = compiled(parts, state) if done < last else parts.step
    parts.stop.defer()
    stopping = parts.stop.asked()
    while done < last and not stopping:
        with clock.spent("data"):
            batch = next(parts.batches)
        if batch.n != done:
            raise RunFailed(f"the loader gave batch {batch.n} where update {done + 1} trains on batch {done}")
        done += 1
        lr = jnp.float32(config.optim.lr * parts.schedule(done))
        if config.train.passes_over(done):
            metrics = passed_over(lr)
        else:
            inputs = place(Inputs(batch.tokens_BT, batch.labels_BT, batch.segments_BT), parts)
            state, metrics = update(state, inputs, lr)
        read = place(Read(batch.instances_B, batch.by_label_BL, batch.masked_B), parts)
        found = parts.reading.ledger.mark(read, begins_epoch=batch.row == 0)
        log.later(done, metrics, found, batch)
        parts.checkpoints.tell(parts.tracker.event)

        stopping = parts.stop.asked()
        evaluates = done == horizon or done % config.eval.every == 0
        saves = done == last or config.checkpoint.due(done) or stopping
        if evaluates or saves:
            log.catch_up()
        if evaluates:
            with clock.spent("eval"):
                parts.evaluate(done, state)
        if saves:
            with clock.spent("save"):
                save(parts, state, done, batch, permanent=done == last or config.checkpoint.permanent(done))
    end = parts.checkpoints.settle if done == last else parts.checkpoints.wait  # a stop has no time to remove old ones
    with clock.spent("save"):
        end(parts.tracker.event)
    return done


def save(parts: Parts, state: State, done: int, last: Batch, *, permanent: bool) -> None:
    """Starts the checkpoint of update `done`, which consumed batch `last`, with every row up to it on disk."""
    rows = parts.tracker.sync()
    parts.checkpoints.wait(parts.tracker.event)
    record, words_W = parts.reading.record(last) | {"rows": rows}, parts.reading.ledger.words_W
    parts.checkpoints.save(done, state, parts.meta, record, words_W, permanent=permanent)


def place(arrays: Tree, parts: Parts) -> Tree:
    """Arrays over the global batch on the devices as [A, B/A, ...]: micro-batches divided over the mesh.

    Args:
      arrays: [B/P, ...], what this one of P processes has read. As it reads every P-th instance, a micro-batch holds
        the same ones for every P.
      parts: Of the run.
    """
    micro_batches = parts.config.hardware.accumulation(parts.config.train.global_batch)
    sharding = batch_sharding(parts.mesh, leading=1)

    def placed(array_B: np.ndarray) -> jax.Array:
        divided = array_B.reshape(micro_batches, -1, *array_B.shape[1:])
        return jax.make_array_from_process_local_data(sharding, divided)

    return jax.tree.map(placed, arrays)


def compiled(parts: Parts, state: State) -> Step:
    """The update, compiled before the clock starts; what marks the ledger, too."""
    config, ledger = parts.config, parts.reading.ledger
    began = time.perf_counter()
    B, L = config.train.global_batch // jax.process_count(), len(ledger.labels)
    ledger.compile(place(Read(np.zeros(B, np.uint32), np.zeros((B, L), np.int32), np.zeros(B, bool)), parts))
    executable = compiler.compiled(lower(config, parts.mesh, parts.step, state), config.hardware)
    parts.tracker.event("compiled", seconds=round(time.perf_counter() - began, 3))
    return executable
