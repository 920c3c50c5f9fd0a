"""What the ledger costs beside an update.

    python benchmarks/ledger.py [--rounds N]

Prints one JSON object on standard output. `nano` is an update of `experiment=nano` and its own ledger; `olmo3` the same
update beside a ledger of 724 million instances, which is Olmo 3's 5.9T tokens in instances of 8,192. Each round waits
for an update, then for all that the ledger adds to one: the numbers put on the devices, the mark, its results fetched,
the counts. So `share`, the ratio of the medians, is the most it can cost: in a run the device does not wait for it.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import batch_sharding, make_mesh, token_sharding
from olmo_hydra.train.ledger import Ledger, Read
from olmo_hydra.train.state import make_program
from olmo_hydra.train.step import Inputs, make_step

INSTANCES = {"nano": 100_000, "olmo3": 724_000_000}
LABELS = {"nano": 4, "olmo3": 65}


def main() -> None:
    parser = argparse.ArgumentParser(description="an update, and what the ledger adds to it")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    config = compose(["experiment=nano"])
    mesh = make_mesh(config.hardware, devices.acquire(config.hardware, ""))
    program = make_program(config, mesh)
    B, T = config.train.global_batch, config.data.seq_len
    rng = np.random.default_rng(0)

    def placed(tree: Any, sharding: NamedSharding) -> Any:
        return jax.device_put(jax.tree.map(lambda array: array[None], tree), sharding)

    tokens_BT = rng.integers(0, 256, (B, T)).astype(np.int32)
    inputs = placed(Inputs(tokens_BT, tokens_BT, None), token_sharding(mesh, leading=1))
    lr, state = jnp.float32(1e-3), program.init()
    update = jax.jit(make_step(program), donate_argnums=0).lower(state, inputs, lr).compile()
    result: dict[str, Any] = {"cpus": os.cpu_count(), "rounds": args.rounds}
    for name, n_instances in INSTANCES.items():
        ledger = Ledger(n_instances, [str(i) for i in range(LABELS[name])], mesh)
        updates, ledgers = [], []
        for n in range(args.rounds + 2):
            instances_B = rng.integers(0, n_instances, B).astype(np.uint32)
            read = Read(instances_B, np.full((B, LABELS[name]), T // LABELS[name], np.int32), np.zeros(B, bool))
            start = time.perf_counter()
            state, metrics = update(state, inputs, lr)
            jax.device_get(metrics)
            updated = time.perf_counter()
            found = ledger.mark(placed(read, batch_sharding(mesh, leading=1)), begins_epoch=n == 0)
            ledger.count(1, B, jax.device_get(found))
            if n >= 2:  # the first rounds compile
                updates.append(updated - start)
                ledgers.append(time.perf_counter() - updated)
        seconds = [statistics.median(each) for each in (updates, ledgers)]
        result[name] = {
            "instances": n_instances,
            "update_seconds": round(seconds[0], 6),
            "ledger_seconds": round(seconds[1], 6),
            "share": round(seconds[1] / seconds[0], 5),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
