"""A kernel on the mesh of a run."""

from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from olmo_hydra.config.hardware import BATCH_AXES
from olmo_hydra.model.kernels.attend import Attend
from olmo_hydra.model.layout import divided


@dataclass(frozen=True)
class Divided:
    """Each device computes its own instances and heads, of which attention mixes none. See `Attend`.

    The compiler could not divide a Pallas kernel, and would have to guess for the others. A batch that does not divide
    (prompts of samples) is computed everywhere.

    Attributes:
      attend: The kernel of one device.
      mesh: Devices, along `MESH_AXES`; `tensor` divides the query and the key-value heads.
    """

    attend: Attend
    mesh: Mesh

    def __call__(
        self,
        q_BTHD: jax.Array,
        k_BSKD: jax.Array,
        v_BSKD: jax.Array,
        *,
        window: int | None,
        scale: float,
        segments_BT: jax.Array | None = None,
    ) -> jax.Array:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> jax.Array:
            return self.attend(q, k, v, window=window, scale=scale, segments_BT=segments)

        arrays = (q_BTHD, k_BSKD, v_BSKD)
        q, k, v = (divided(self.mesh, x.shape, (BATCH_AXES, None, "tensor")) for x in arrays)
        segments = divided(self.mesh, q_BTHD.shape, (BATCH_AXES,))
        on_mesh = jax.shard_map(attend, mesh=self.mesh, in_specs=(q, k, v, segments), out_specs=q, check_vma=False)
        return on_mesh(*arrays, segments_BT)
