"""Where activations lie on the mesh of a run, said where the compiler would choose worse from the parameters alone."""

import math
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.hardware import BATCH_AXES
from olmo_hydra.model.linear import Embedding


@dataclass(frozen=True)
class Layout:
    """Keeps the residual stream divided by instances alone, so that what moves are weights, for one product at a time.

    Left to itself the compiler divides the stream's width over `fsdp`, as the weights are: then every device computes
    attention for the whole batch, and adds up activations instead of gathering weights.

    Attributes:
      mesh: Devices, along `MESH_AXES`. Null: activations lie where the parameters do.
    """

    mesh: Mesh | None = None

    def stream(self, x_BTD: jax.Array) -> jax.Array:
        """The residual stream between two layers."""
        return self._at(x_BTD, BATCH_AXES)

    def lookup(self, embedding: Embedding, tokens_BT: jax.Array) -> jax.Array:
        """The stream before the first layer.

        Devices along `fsdp` have the same rows of the table, but another part of their width: each looks up its part
        for the instances of all of them, and they exchange. Without this the table itself is gathered.
        """
        tokens_BT = self._at(tokens_BT, "data")
        return self.stream(self._at(embedding(tokens_BT), "data", None, "fsdp"))

    def _at(self, x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, divided(self.mesh, x.shape, axes)))


ONE_DEVICE = Layout()


def divided(mesh: Mesh, shape: tuple[int, ...], axes: tuple[str | tuple[str, ...] | None, ...]) -> PartitionSpec:
    """The first dimensions over `axes` of the mesh; those that do not divide are whole on every device."""
    names = [(axis,) if isinstance(axis, str) else axis or () for axis in axes]
    sizes = [math.prod(mesh.shape[name] for name in group) for group in names]
    fits = [axis if size % share == 0 else None for axis, size, share in zip(axes, shape, sizes, strict=False)]
    return PartitionSpec(*fits)
