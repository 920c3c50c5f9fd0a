"""How arrays lie on the mesh: by the table of `config/mesh.py`."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.hardware import HardwareConfig
from olmo_hydra.config.mesh import MESH_AXES, RULES, divided


def make_mesh(cfg: HardwareConfig, devices: list[jax.Device]) -> Mesh:
    """The mesh of the config, along `MESH_AXES`, over devices in their order: slice by slice, if there are several.

    `data` is the outermost axis and a multiple of the slices, so that no other one leaves a slice.
    """
    return Mesh(np.asarray(devices).reshape(list(cfg.mesh.sizes.values())), MESH_AXES)


def param_sharding(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Divides both sides of a matrix by `RULES`; norms, and a model width that does not divide, are replicated.

    Args:
      axes: Logical axis names, one a dimension (`("layers", "embed", "heads")`).
      shape: Of the same parameter.
    """
    is_matrix = len([name for name in axes if name != "layers"]) > 1
    names = axes if is_matrix else (None,) * len(axes)
    return NamedSharding(mesh, PartitionSpec(*divided(names, shape, mesh.shape)))


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Of what instances have, after `leading` undivided dimensions; along `context` and `tensor` lie copies."""
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, RULES["batch"]))


def token_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Of what tokens have, [B, T] after `leading` undivided dimensions; along `tensor` lie copies."""
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, RULES["batch"], RULES["length"]))


def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process of the run has, on the devices of all of them."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
