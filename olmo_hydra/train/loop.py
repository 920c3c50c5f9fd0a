"""The training loop."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from olmo_hydra.config.errors import RunFailed
from olmo_hydra.data.loader import Batch
from olmo_hydra.hardware.sharding import batch_sharding, token_sharding
from olmo_hydra.train.ledger import Read
from olmo_hydra.train.log import Log
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.state import State
from olmo_hydra.train.step import Inputs, Step, passed_over

Tree = Any


def run(parts: Parts, state: State, done: int) -> int:
    """Trains from update `done` to the horizon, `run.stop_at` or a stop request; the state there is saved.

    The order within a step is fixed: update, rows of the step before, evaluation, checkpoint. Rows of updates and of
    evaluations are fetched one step late, so that the devices never wait for them; before a checkpoint everything is
    caught up, so that checkpoint n finds the rows up to n on disk. The evaluation at step 0 comes after update 1, with
    the parameters from before it: who waits for a run to begin need not wait for that.

    Returns:
      The number of updates done.

    Raises:
      RunFailed: `optim.max_consecutive_skips` updates in a row were skipped, or the data came in another order than by
        number.
    """
    config = parts.config
    horizon = config.train.steps
    assert horizon is not None
    last = config.last_update
    log, clock = Log(parts), parts.clock
    if done >= last:
        parts.stop.defer()
        if done == last:
            parts.checkpoints.make_permanent(done)
            parts.checkpoints.settle(parts.tracker.event)
        return done
    clock.turn_to("updates")
    initial = aside(state.params) if done == 0 and parts.has_heldout else None
    with clock.spent("compile"):
        update = compiled(parts)
    parts.stop.defer()
    stopping, is_first = parts.stop.asked(), True
    while done < last and not stopping:
        with clock.spent("data"):
            batch = next(parts.batches)
        if batch.n != done:
            raise RunFailed(f"the loader gave batch {batch.n} where update {done + 1} trains on batch {done}")
        done += 1
        parts.profile.before(done, state)
        lr = np.asarray(config.optim.lr * parts.schedule(done), np.float32)  # to convert it on the devices takes 1 ms
        if config.train.passes_over(done):
            metrics = passed_over(lr)
        else:
            inputs = place(Inputs(batch.tokens_BT, batch.labels_BT, batch.segments_BT), token_sharding, parts)
            state, metrics = update(state, inputs, lr)
        read = place(Read(batch.instances_B, batch.by_label_BL, batch.masked_B), batch_sharding, parts)
        found = parts.reading.ledger.mark(read, begins_epoch=batch.row == 0)
        if is_first:
            log.first_update(done, metrics)
            is_first = False
        log.catch_up()
        log.later(done, metrics, found, batch)
        parts.profile.after(done, state)
        if initial is not None:
            log.evaluation(0, initial)
            initial = None
        parts.checkpoints.tell(parts.tracker.event)

        stopping = parts.stop.asked()
        evaluates = done == horizon or done % config.eval.every == 0
        saves = done == last or config.checkpoint.due(done) or stopping
        if evaluates:
            log.evaluation(done, state.params)
        if saves:
            log.catch_up()
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


def place(arrays: Tree, sharding_of: Callable[[Mesh, int], NamedSharding], parts: Parts) -> Tree:
    """Arrays over the global batch as [A, B/A, ...]: micro-batches, which are divided over the mesh.

    Of several processes they are on the devices. Of one they are still the host's: the executable divides them itself,
    which takes 0.3 ms less (benchmarks/step_loop.py).

    Args:
      arrays: [B/P, ...], what this one of P processes has read. As it reads every P-th instance, a micro-batch holds
        the same ones for every P.
      sharding_of: `token_sharding` or `batch_sharding`.
      parts: Of the run.
    """
    micro_batches = parts.config.hardware.accumulation(parts.config.train.global_batch)
    sharding, is_alone = sharding_of(parts.mesh, 1), jax.process_count() == 1

    def placed(array_B: np.ndarray) -> jax.Array | np.ndarray:
        divided = array_B.reshape(micro_batches, -1, *array_B.shape[1:])
        return divided if is_alone else jax.make_array_from_process_local_data(sharding, divided)

    return jax.tree.map(placed, arrays)


def aside(params: Tree) -> Tree:
    """A copy in the memory of the hosts, which an update leaves alone."""
    return jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind("pinned_host"), params))


def compiled(parts: Parts) -> Step:
    """The update, compiled before the first batch is read; what marks the ledger, too."""
    config, ledger, sharding = parts.config, parts.reading.ledger, batch_sharding(parts.mesh, 1)
    micro_batches = config.hardware.accumulation(config.train.global_batch)
    shape_AB = (micro_batches, config.train.global_batch // micro_batches)

    def read(dtype: Any, *of_each: int) -> Any:
        return jax.ShapeDtypeStruct((*shape_AB, *of_each), dtype, sharding=sharding)

    ledger.compile(Read(read(np.uint32), read(np.int32, len(ledger.labels)), read(bool)))
    step, seconds = parts.update()
    parts.tracker.event("compiled", seconds=round(seconds, 3))
    return step
