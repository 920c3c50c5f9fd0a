"""A kernel on the mesh of a run."""

from dataclasses import dataclass
from typing import cast

import jax
from jax.sharding import Mesh

from olmo_hydra.model.kernels import context
from olmo_hydra.model.kernels.attend import Attend, AttendShard
from olmo_hydra.model.layout import spec


@dataclass(frozen=True)
class Divided:
    """Each device computes its own instances and heads, of which attention mixes none, and its own positions. See
    `Attend`.

    The compiler could not divide a Pallas kernel, and would have to guess for the others. A batch that does not divide
    (prompts of samples) is computed everywhere, and so are sequences that do not divide into two parts a shard.

    Attributes:
      attend: The kernel of one device; `AttendShard` where the mesh divides positions.
      mesh: Devices, along `MESH_AXES`.
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
        segments_BS: jax.Array | None = None,
    ) -> jax.Array:
        shards = self.mesh.shape["context"]
        has_shards = shards > 1 and q_BTHD.shape[1] % (2 * shards) == 0

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> jax.Array:
            if not has_shards:
                return self.attend(q, k, v, window=window, scale=scale, segments_BS=segments)
            kernel = cast(AttendShard, self.attend)
            return context.attention(kernel, q, k, v, window=window, scale=scale, segments_BT=segments, shards=shards)

        length = "length" if has_shards else None
        q = spec(self.mesh, q_BTHD.shape, ("batch", length, "heads"))
        kv = spec(self.mesh, k_BSKD.shape, ("batch", length, "kv_heads"))
        segments = spec(self.mesh, q_BTHD.shape, ("batch", length))
        on_mesh = jax.shard_map(attend, mesh=self.mesh, in_specs=(q, kv, kv, segments), out_specs=q, check_vma=False)
        return on_mesh(q_BTHD, k_BSKD, v_BSKD, segments_BS)
