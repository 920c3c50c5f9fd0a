"""How arrays lie on the mesh: the batch is divided over `data` and `fsdp`, parameters over `fsdp`."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.hardware import HardwareConfig

BATCH_AXES = ("data", "fsdp")

# The logical axis of a matrix that `fsdp` divides. Every matrix of the decoder has the model's width on one side.
SHARDED = "embed"


def make_mesh(cfg: HardwareConfig, devices: list[jax.Device]) -> Mesh:
    """The mesh of the config, (data, fsdp), over devices in JAX's order."""
    return Mesh(np.asarray(devices).reshape(cfg.mesh.data, cfg.mesh.fsdp), BATCH_AXES)


def param_sharding(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Divides the model's width of a matrix over `fsdp`; norms, and widths that do not divide, are replicated.

    Args:
      axes: Logical axis names, one a dimension (`("layers", "embed", "heads")`).
      shape: Of the same parameter.
    """
    matrix_axes = [name for name in axes if name != "layers"]
    spec: list[str | None] = [None] * len(axes)
    if len(matrix_axes) > 1 and SHARDED in axes:
        dim = axes.index(SHARDED)
        if shape[dim] % mesh.shape["fsdp"] == 0:
            spec[dim] = "fsdp"
    return NamedSharding(mesh, PartitionSpec(*spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Divides the batch dimension, the one after `leading` undivided dimensions."""
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, BATCH_AXES))
