"""Bytes of a run's state, from the config alone."""

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.root import Config

SIZE = {DType.float32: 4, DType.bfloat16: 2}


def state_bytes_per_device(config: Config) -> int:
    """Parameters and both moments on one device: divided over `fsdp`, copied along `data`. Norms count as divided."""
    optim = config.optim
    per_param = SIZE[config.model.param_dtype] + SIZE[optim.mu_dtype] + SIZE[optim.nu_dtype]  # type: ignore[attr-defined]
    return per_param * config.model.num_params // config.hardware.mesh.fsdp
