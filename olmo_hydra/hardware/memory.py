"""Bytes of a run's state, from the config alone."""

from olmo_hydra.config.root import Config


def state_bytes_per_device(config: Config) -> int:
    """Parameters and optimizer state on one device: divided over `fsdp` (norms too), copied along `data`."""
    per_param = config.model.param_dtype.size + config.optim.state_bytes_per_param
    return per_param * config.model.num_params // config.hardware.mesh.fsdp
