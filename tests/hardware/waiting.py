"""A process of several that waits in a collective operation, as those of a run do: `waiting.py SECONDS [HOW]`."""

import os
import sys
import time

import jax
from jax.experimental import multihost_utils

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig, Platform
from olmo_hydra.hardware.processes import join
from olmo_hydra.hardware.watch import Watch


def main(timeout: float, how: str) -> None:
    count = int(os.environ["JAX_NUM_PROCESSES"])
    cfg = HardwareConfig(platform=Platform.cpu, devices=count, processes=count)
    processes = join(cfg)
    order: list[float] = []
    processes.in_turn("files", lambda: order.append(time.time()))
    decided = processes.agreed("number", lambda: 17) if processes.first else processes.agreed("number", lambda: 0)
    gathered = processes.gathered("turns", [processes.index, order[0], decided])
    with Watch(processes, timeout) as watch:

        def told(event: str, text: str) -> None:
            print("lost:", event, text, flush=True)
            if how == "stumbles":
                raise OSError("the disk is full too")

        watch.when_lost = told
        print("ready", gathered, flush=True)
        if how == "over":
            watch.over()
            return
        while True:
            if how == "fails" and processes.index == 1:
                raise ValueError("a disk of its own is full")
            if how == "all refuse":
                time.sleep(0.5 if processes.first else 0)
                raise RequestError("the data is another one")
            multihost_utils.process_allgather(jax.numpy.ones(3))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
