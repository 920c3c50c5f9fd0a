"""Our own program: the update of a run, from a composed config."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.peers.worker import Loaded
from olmo_hydra.config.compose import compose
from olmo_hydra.config.root import Config
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import make_mesh, put, token_sharding
from olmo_hydra.interop.names import counterparts
from olmo_hydra.model.params import named
from olmo_hydra.train import ahead
from olmo_hydra.train.state import State, make_program
from olmo_hydra.train.step import Inputs, make_step


def overrides(job: dict[str, Any]) -> list[str]:
    """The command line of the run that a job describes."""
    model, optim = job["model"], job["optim"]
    sizes = ("d_model", "n_layers", "n_heads", "head_dim", "d_ff", "vocab_size", "window", "rope_theta", "norm_eps")
    rates = ("lr", "b1", "b2", "eps", "weight_decay", "clip_norm")
    return [
        *("model=olmo3_7b", "optim=adamw", "schedule=constant", "schedule.warmup_steps=0"),
        *(f"model.{name}={model[name]}" for name in sizes),
        *(f"optim.{name}={optim[name]}" for name in rates),
        f"model.window_pattern=[{','.join(model['pattern'])}]",
        f"model.compute_dtype={job['compute_dtype']}",
        *(f"data.seq_len={job['seq_len']}", f"train.global_batch={job['batch']}", f"train.seed={job['seed']}"),
        *("train.steps=1000000", "train.z_loss=0", f"hardware={job['hardware']}", f"hardware.remat={job['remat']}"),
        *([f"hardware.micro_batch={job['micro_batch']}"] if job["micro_batch"] else []),
        *job["overrides"],
    ]


def load(job: dict[str, Any]) -> Loaded:
    """Makes the update, and writes its initial parameters where the job says."""
    config = compose(overrides(job))
    mesh = make_mesh(config.hardware, devices.acquire(config.hardware, ""))
    program = make_program(config, mesh)
    state = program.init()
    if job["weights"]:
        write(Path(job["weights"]), config, state)
    step = ahead.compiled(program, make_step(program)).step
    sharding, micro_batches = token_sharding(mesh, leading=1), config.hardware.accumulation(config.train.global_batch)
    lr = np.float32(config.optim.lr)

    def placed(ids_BT: np.ndarray) -> jax.Array:
        return put(ids_BT.astype(np.int32).reshape(micro_batches, -1, ids_BT.shape[1]), sharding)

    def update(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> jax.Array:
        nonlocal state
        state, metrics = step(state, Inputs(placed(tokens_BT), placed(labels_BT), None), lr)
        return metrics["loss"]

    versions = {name: version(name) for name in ("jax", "jaxlib", "flax")}
    return Loaded(update, config.model.num_params, versions)


def write(file: Path, config: Config, state: State) -> None:
    """Parameters under Hugging Face's names, in fp32."""
    arrays = named(state.params)
    tensors = {}
    for name, there in counterparts(config.model, arrays).items():
        array = np.asarray(arrays[name], np.float32)
        for theirs, part in zip(there.tensors, array if there.stacked else [array], strict=True):
            tensors[theirs] = part.T if there.transposed else part
    np.savez(file, **tensors)
