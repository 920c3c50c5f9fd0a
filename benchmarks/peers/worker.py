"""The side of a worker: one process that loads a program, warms it up, and then updates when it is told to.

    PYTHON -m benchmarks.peers.worker ADAPTER

It knows NumPy, the standard library and the adapter only, as it runs in the environments of peers. The protocol is a
JSON object a line: the job on standard input and what was loaded on standard output; then `{"steps": k}` and a turn,
until the input ends. What libraries print goes to standard error.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

BATCHES = 4  # different ones, over and over


class Loaded(NamedTuple):
    """A program ready to train.

    Attributes:
      update: From tokens_BT and labels_BT (int64) to the loss of the batch before the update, something that `float`
        waits for.
      num_params: As the program counts them.
      versions: Of the libraries that matter.
    """

    update: Callable[[np.ndarray, np.ndarray], Any]
    num_params: int
    versions: dict[str, str]


def serve(adapter: str) -> None:
    """Runs a worker around the function `load` of an adapter, which makes a program from a job."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**fields: Any) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    job = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    load: Callable[[dict[str, Any]], Loaded] = importlib.import_module(f"benchmarks.peers.adapters.{adapter}").load
    loaded, batches = load(job), batches_of(job)
    warm = turn(loaded, batches, job["warmup"])
    seconds = time.perf_counter() - began
    reply(num_params=loaded.num_params, versions=loaded.versions, losses=warm["losses"], load_seconds=seconds)
    for line in sys.stdin:
        reply(**turn(loaded, batches, json.loads(line)["steps"]))


def turn(loaded: Loaded, batches: Iterator[tuple[np.ndarray, np.ndarray]], steps: int) -> dict[str, Any]:
    """Some updates in a row, timed until the last one is done: wall and processor seconds, and their losses."""
    began, began_cpu = time.perf_counter(), time.process_time()
    losses = [loaded.update(*next(batches)) for _ in range(steps)]
    losses = [float(loss) for loss in losses]
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - began_cpu, "losses": losses}


def batches_of(job: dict[str, Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """tokens_BT and labels_BT, the same in every worker. Small ids are frequent: there is something to learn."""
    for n in count():
        rng = np.random.default_rng([job["seed"], n % BATCHES])
        drawn = job["model"]["vocab_size"] * rng.random((job["batch"], job["seq_len"] + 1)) ** 4
        ids = drawn.astype(np.int64)
        yield ids[:, :-1], ids[:, 1:]


if __name__ == "__main__":
    serve(sys.argv[1])
