"""Bytes of a run's state, from the config alone."""

from olmo_hydra.config.mesh import halo
from olmo_hydra.config.model import Attention
from olmo_hydra.config.root import Config


def state_bytes_per_device(config: Config) -> int:
    """Parameters and moments on one device, as `sharding.param_sharding` lays them out.

    Matrices are divided over `fsdp`, if it divides the model's width, and `tensor`; norms are whole on every device.
    """
    per_param = config.model.param_dtype.size + config.optim.state_bytes_per_param
    return per_param * params_per_device(config)


def params_per_device(config: Config) -> int:
    """Parameters that one device holds: its part of the matrices, and all norms."""
    model = config.model
    shards = config.hardware.mesh.tensor * width_shards(config)
    return (model.num_params - model.num_norm_params) // shards + model.num_norm_params


def width_shards(config: Config) -> int:
    """Parts into which `fsdp` divides the width of every matrix: 1 where it does not divide, and they lie whole."""
    fsdp = config.hardware.mesh.fsdp
    return fsdp if config.model.d_model % fsdp == 0 else 1


def others_keys(config: Config, kind: Attention) -> int:
    """Keys of other devices along `context` that one takes in a layer of a kind, for each instance."""
    seq_len, window = config.data.seq_len, config.model.window if kind is Attention.sliding else None
    others = seq_len - seq_len // config.hardware.mesh.context
    before = halo(seq_len, window)
    return others if before is None else min(before, others)


def others_keys_bytes(config: Config, kind: Attention) -> int:
    """Those keys and their values, in a device's heads, of all instances that it computes at once."""
    model, hardware, train = config.model, config.hardware, config.train
    assert model.n_kv_heads is not None
    instances = hardware.instances_at_once(train.global_batch)
    width = 2 * model.n_kv_heads // hardware.mesh.tensor * model.head_dim
    return instances * others_keys(config, kind) * width * model.compute_dtype.size
