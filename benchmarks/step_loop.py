"""What the loop costs an update on the host, beside the device's program: of a model so small that nothing hides it.

    python benchmarks/step_loop.py [--updates N] [overrides]

Trains a model of one layer through the real session (data read ahead by its threads, rows written, the ledger marked),
and calls the same executables alone, back to back. Prints milliseconds an update: wall time, and CPU time of the main
thread, which other load on the machine hardly changes.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.cli import session
from olmo_hydra.cli.guard import guarded
from olmo_hydra.config.compose import compose
from olmo_hydra.config.identity import run_name
from olmo_hydra.hardware.sharding import batch_sharding, token_sharding
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.train import loop
from olmo_hydra.train.ledger import Read
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.state import State
from olmo_hydra.train.step import Inputs
from olmo_hydra.train.stop import StopRequest

SMALL = (
    *("model.d_model=16", "model.head_dim=16", "model.d_ff=16", "model.n_layers=1", "model.window_pattern=[full]"),
    *("data.seq_len=16", "train.global_batch=4", "data.heldout_bytes=4096", "eval.sample_tokens=0"),
    *("eval.every=1000000", "checkpoint.every=1000000", "tracking.wandb=disabled", "optim=adamw"),
)
WARM = 50  # updates before the clocks start

real = loop.run


def main() -> None:
    parser = argparse.ArgumentParser(description="host time of an update outside the device's program")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    args = parser.parse_args()
    if args.updates < 1:
        parser.error(f"--updates {args.updates} is no number from 1 on")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as root:
        for log_every in (1, 10):
            steps = (f"train.steps={WARM + args.updates}", f"tracking.log_every={log_every}")
            config = compose([*SMALL, *steps, f"run.root={root}", f"run.tag=log{log_every}", *args.overrides])
            loop.run = lambda parts, state, done: measured(found, parts, state, done)  # type: ignore[assignment]
            with StopRequest() as stop:
                session.train(config, [], RunDir(Path(root) / run_name(config)), stop, is_last=True)
            found[f"loop, log_every={log_every}"] = found.pop("loop")
    alone = found["alone"]
    for name, times in found.items():
        over = {clock: times[clock] - alone[clock] for clock in times} if name != "alone" else {}
        print(f"{name:20} {said(times)}" + (f"   beside the programs: {said(over)}" if over else ""))
    print(json.dumps(found))


def measured(found: dict[str, dict[str, float]], parts: Parts, state: State, done: int) -> int:
    """Runs the loop, and before it its executables alone."""
    updates = parts.config.train.steps - WARM  # type: ignore[operator]
    step, ledger, config = parts.update().step, parts.reading.ledger, parts.config
    B, T, L = config.train.global_batch, config.data.seq_len, len(ledger.labels)
    tokens_BT = np.zeros((B, T), np.int32)
    inputs = loop.place(Inputs(tokens_BT, tokens_BT, None), token_sharding, parts)
    read = loop.place(
        Read(np.arange(B, dtype=np.uint32), np.zeros((B, L), np.int32), np.zeros(B, bool)), batch_sharding, parts
    )
    copy, words_W, lr = jax.tree.map(jnp.copy, state), jnp.copy(ledger.words_W), np.float32(0)
    for n in range(-WARM, updates):
        if n == 0:
            clocks = now()
        copy, metrics = step(copy, inputs, lr)
        ledger.mark(read, begins_epoch=False)
        jax.block_until_ready(metrics)  # as the loop does, but for one step
    found["alone"] = {name: (value - clocks[name]) / updates for name, value in now().items()}
    ledger.words_W = words_W

    batches, clocks = parts.batches, {}

    def watched() -> Any:
        for batch in batches:
            if batch.n == WARM:
                clocks.update(now())
            yield batch

    object.__setattr__(parts, "batches", watched())
    ended = real(parts, state, done)
    found["loop"] = {name: (value - clocks[name]) / updates for name, value in now().items()}
    return ended


def now() -> dict[str, float]:
    """Milliseconds on both clocks."""
    return {"wall": 1000 * time.perf_counter(), "main thread": 1000 * time.thread_time()}


def said(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f} ms" for name, value in times.items())


if __name__ == "__main__":
    sys.exit(guarded(main))
