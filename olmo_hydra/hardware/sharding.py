"""How arrays lie on the mesh: the batch over `data` and `fsdp`, parameters over `fsdp` and `tensor`."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.hardware import BATCH_AXES, MESH_AXES, HardwareConfig

# Which axis of the mesh divides a logical axis of a matrix. Every matrix of the decoder has the model's width on one
# side and on the other what `tensor` divides (arXiv 1909.08053): columns of the first of two products, rows of the
# second, so that only the sum after both is communicated.
MESH_AXIS = {"embed": "fsdp", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor"}


def make_mesh(cfg: HardwareConfig, devices: list[jax.Device]) -> Mesh:
    """The mesh of the config, (data, fsdp, tensor), over devices in JAX's order."""
    shape = [getattr(cfg.mesh, name) for name in MESH_AXES]
    return Mesh(np.asarray(devices).reshape(shape), MESH_AXES)


def param_sharding(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Divides both sides of a matrix by `MESH_AXIS`; norms, and a model width that does not divide, are replicated.

    Args:
      axes: Logical axis names, one a dimension (`("layers", "embed", "heads")`).
      shape: Of the same parameter.
    """
    is_matrix = len([name for name in axes if name != "layers"]) > 1
    spec: list[str | None] = [None] * len(axes)
    for dim, name in enumerate(axes):
        mesh_axis = MESH_AXIS.get(name)
        if is_matrix and mesh_axis and shape[dim] % mesh.shape[mesh_axis] == 0:
            spec[dim] = mesh_axis
    return NamedSharding(mesh, PartitionSpec(*spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Divides the batch dimension, the one after `leading` undivided dimensions; devices along `tensor` have copies."""
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, BATCH_AXES))


def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process of the run has, on the devices of all of them."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
