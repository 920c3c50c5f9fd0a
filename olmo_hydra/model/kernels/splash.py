"""Attention by JAX's splash kernel: blocks of logits in on-chip memory, nothing read outside the mask. For TPUs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from olmo_hydra.config.hardware import splash_block
from olmo_hydra.config.remat import Point

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
        segments_BT: jax.Array | None = None,
    ) -> jax.Array:
        _, T, H, _ = q_BTHD.shape
        length, block = splash_block(T, self.block)
        kernel = make_kernel(
            heads=H,
            length=length,
            window=None if window is None or window >= length else window,
            block=block,
            interpret=self.interpret,
        )

        def prepared(x: jax.Array) -> jax.Array:
            return jnp.pad(x, ((0, 0), (0, length - T), (0, 0), (0, 0))).swapaxes(1, 2)

        ids = None
        if segments_BT is not None:
            segments_BT = jnp.pad(segments_BT, ((0, 0), (0, length - T)), constant_values=PADDING)
            ids = splash.SegmentIds(segments_BT, segments_BT)
        out_BHTD = jax.vmap(kernel)(prepared(q_BTHD * scale), prepared(k_BSKD), prepared(v_BSKD), ids)
        return out_BHTD.swapaxes(1, 2)[:, :T]


@lru_cache(maxsize=32)
def make_kernel(*, heads: int, length: int, window: int | None, block: int, interpret: bool) -> Any:
    """The kernel of one shape and window, with its table of blocks as numpy constants."""
    shape = (length, length)
    # Both sides of a local mask count from the query's own position.
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), offset=0)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    with jax.ensure_compile_time_eval():
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
            # Kept with the logarithms of the softmax's denominators, without which the kernel would run again.
            residual_checkpoint_name=Point.context.value,
        )
        return jax.tree.map(np.asarray, kernel)
