"""One update of a small Olmo 3 on one GPU, in bf16 with cuDNN's attention, against the same in fp32 on the processor.

    python benchmarks/gpu_step.py [--rehearse]

Prints one JSON object: loss and gradient norm of both, and the largest root mean square difference of a parameter's
gradient, as a fraction of the gradient's own. Exit status 1 if one is above the tolerance. `--rehearse` computes both
on the processor, the first one in bf16 with the kernel that runs anywhere.

bf16 has 8 bits: through eight products and norms a gradient is off by a few hundredths, a wrong window or mask by more
than a tenth.
"""

import argparse
import json
import sys
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.peers.adapters.ours import overrides
from benchmarks.peers.jobs import job
from benchmarks.peers.worker import batches_of
from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.model.params import named
from olmo_hydra.train.state import Program, State, make_program
from olmo_hydra.train.step import Inputs, make_step

TOLERANCE = {"loss": 5e-3, "grad_norm": 2e-2, "gradient": 8e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description="one update on a GPU against the processor")
    parser.add_argument("--rehearse", action="store_true", help="both on the processor")
    rehearse = parser.parse_args().rehearse
    platform = "cpu" if rehearse else "gpu"
    small = job("tiny", None, batch=2, overrides=["optim.clip_norm=null"])
    cpu = jax.devices("cpu")[0]
    exact = program(small, cpu)
    state = jax.device_put(exact.init(), cpu)
    wanted = update(exact, state, small)
    kernel = "xla" if rehearse else "cudnn"
    fast = small | {"hardware": platform, "compute_dtype": "bfloat16", "remat": "full"}
    fast["overrides"] = [*small["overrides"], f"hardware.attention={kernel}"]
    device = jax.devices(platform)[0]
    found = update(program(fast, device), jax.device_put(state, device), fast)
    apart = {name: abs(found[name] - wanted[name]) / wanted[name] for name in ("loss", "grad_norm")}
    apart["gradient"] = max(off(found["gradients"][name], gradient) for name, gradient in wanted["gradients"].items())
    result = {
        "passed": all(value <= TOLERANCE[name] for name, value in apart.items()),  # False for a NaN too
        "apart": apart,
        "tolerance": TOLERANCE,
        "loss": [found["loss"], wanted["loss"]],
        "grad_norm": [found["grad_norm"], wanted["grad_norm"]],
        "device": device.device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(result))
    sys.exit(not result["passed"])


def program(what: dict[str, Any], device: jax.Device) -> Program:
    config = compose([*overrides(what), *(["hardware.chips=1"] if what["hardware"] == "gpu" else [])])
    return make_program(config, make_mesh(config.hardware, [device]))


def update(made: Program, state: State, what: dict[str, Any]) -> dict[str, Any]:
    """Loss, gradient norm and gradients of one update. The first moment after it is a tenth of the gradient."""
    tokens_BT, labels_BT = (ids[None].astype(np.int32) for ids in next(batches_of(what)))
    after, metrics = jax.jit(make_step(made))(state, Inputs(tokens_BT, labels_BT, None), np.float32(1e-3))
    moments = named(optax.tree.get(after.opt_state, "mu"))
    gradients = {name: np.asarray(array, np.float64) for name, array in moments.items()}
    return {name: float(metrics[name]) for name in ("loss", "grad_norm")} | {"gradients": gradients}


def off(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - wanted).mean() / np.square(wanted).mean()))


if __name__ == "__main__":
    main()
