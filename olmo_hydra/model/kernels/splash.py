"""Attention by JAX's splash kernel: blocks of logits in on-chip memory, nothing read outside the mask. For TPUs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from olmo_hydra.config.hardware import splash_block, splash_query_block
from olmo_hydra.config.mesh import query_positions
from olmo_hydra.config.remat import Point
from olmo_hydra.model.kernels.context import of_queries

PADDING = -1  # document number of positions that only fill the last block


@dataclass(frozen=True)
class Splash:
    """The kernel on one device. See `Attend`.

    Logits and softmax are fp32; `scale` is applied to the queries, in their dtype.

    Attributes:
      block: Most queries and keys in a block, a multiple of 128. Null: `SPLASH_BLOCK`.
      interpret: Runs the kernel's operations one by one, on any platform, slowly.
    """

    block: int | None = None
    interpret: bool = False

    def __call__(
        self,
        q_BTHD: jax.Array,
        k_BSKD: jax.Array,
        v_BSKD: jax.Array,
        *,
        window: int | None,
        scale: float,
        segments_BS: jax.Array | None = None,
        shard: jax.Array | None = None,
    ) -> jax.Array:
        (_, T, H, _), S = q_BTHD.shape, k_BSKD.shape[1]
        kernel = make_kernel(
            heads=H,
            queries=T,
            keys=S,
            shards=1 if shard is None else S // T,
            window=None if window is None or window >= S else window,
            block=self.block,
            interpret=self.interpret,
        )
        if shard is not None:
            kernel = of_shard(kernel, shard, S // T)
        more_T, more_S = (splash_block(length, self.block)[0] - length for length in (T, S))

        def prepared(x: jax.Array, more: int) -> jax.Array:
            return jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))).swapaxes(1, 2)

        ids = None
        if segments_BS is not None:
            segments_BT = of_queries(segments_BS, T, shard)
            ids = splash.SegmentIds(
                jnp.pad(segments_BT, ((0, 0), (0, more_T)), mode="edge"),
                jnp.pad(segments_BS, ((0, 0), (0, more_S)), constant_values=PADDING),
            )
        q, k, v = prepared(q_BTHD * scale, more_T), prepared(k_BSKD, more_S), prepared(v_BSKD, more_S)
        out_BHTD = jax.vmap(kernel)(q, k, v, ids)
        return out_BHTD.swapaxes(1, 2)[:, :T]


@lru_cache(maxsize=32)
def make_kernel(
    *, heads: int, queries: int, keys: int, shards: int, window: int | None, block: int | None, interpret: bool
) -> Any:
    """The kernel of one shape and window, with its tables of blocks as numpy constants, those of all shards together.

    Positions that only fill the last block of queries are like the last one, and keys that do are after all of them.
    """
    (rows, block_q), (columns, block_kv) = splash_query_block(queries, shards, block), splash_block(keys, block)
    positions = np.stack([query_positions(shard, shards, queries, keys) for shard in range(shards)])
    filled = np.pad(positions, ((0, 0), (0, rows - queries)), mode="edge").reshape(-1)
    shape = (len(filled), columns)
    # Both sides of a local mask count from the query's own position.
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), offset=0)
    mask.q_sequence = filled.astype(np.int32)
    sizes = splash.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
    )
    with jax.ensure_compile_time_eval():
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=shards,
            interpret=interpret,
            # Kept with the logarithms of the softmax's denominators, without which the kernel would run again.
            residual_checkpoint_name=Point.context.value,
        )
        return jax.tree.map(np.asarray, kernel)


def of_shard(kernel: Any, shard: jax.Array, shards: int) -> Any:
    """The kernel with the tables of one shard, which lie one after the other along the axis of the queries."""

    def own(table: np.ndarray) -> jax.Array:
        axis = min(table.ndim - 1, 1)
        size = table.shape[axis] // shards
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(table), shard * size, size, axis)

    return jax.tree.map(own, kernel)
