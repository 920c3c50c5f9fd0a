"""Bytes of a run's state, from the config alone."""

from olmo_hydra.config.root import Config


def state_bytes_per_device(config: Config) -> int:
    """Parameters and moments on one device, as `sharding.param_sharding` lays them out.

    Matrices are divided over `fsdp`, if it divides the model's width, and `tensor`; norms are whole on every device.
    """
    per_param = config.model.param_dtype.size + config.optim.state_bytes_per_param
    return per_param * params_per_device(config)


def params_per_device(config: Config) -> int:
    """Parameters that one device holds: its part of the matrices, and all norms."""
    model, mesh = config.model, config.hardware.mesh
    shards = mesh.tensor * (mesh.fsdp if model.d_model % mesh.fsdp == 0 else 1)
    return (model.num_params - model.num_norm_params) // shards + model.num_norm_params
