"""Where activations lie on the mesh of a run, said where the compiler would choose worse from the parameters alone."""

from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.mesh import divided
from olmo_hydra.model.linear import Embedding


@dataclass(frozen=True)
class Layout:
    """Keeps the residual stream divided by tokens alone, so that what moves are weights, for one product at a time.

    Left to itself the compiler divides the stream's width over `fsdp`, as the weights are: then every device computes
    attention for the whole batch, and adds up activations instead of gathering weights.

    Attributes:
      mesh: Devices, along `MESH_AXES`. Null: activations lie where the parameters do.
    """

    mesh: Mesh | None = None

    def stream(self, x_BTD: jax.Array) -> jax.Array:
        """The residual stream between two layers."""
        return self._at(x_BTD, "batch", "length")

    def lookup(self, embedding: Embedding, tokens_BT: jax.Array) -> jax.Array:
        """The stream before the first layer.

        Devices along `fsdp` have the same rows of the table, but another part of their width: each looks up its part
        for the instances of all of them, and they exchange. Without this the table itself is gathered.
        """
        tokens_BT = self._at(tokens_BT, "lookup", "length")
        return self.stream(self._at(embedding(tokens_BT), "lookup", "length", "embed"))

    @property
    def divides_positions(self) -> bool:
        return self.mesh is not None and self.mesh.shape["context"] > 1

    def _at(self, x: jax.Array, *axes: str) -> jax.Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec(self.mesh, x.shape, axes)))


ONE_DEVICE = Layout()


def spec(mesh: Mesh, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> PartitionSpec:
    """Of an array whose first dimensions have these logical names."""
    return PartitionSpec(*divided(axes, shape, mesh.shape))
