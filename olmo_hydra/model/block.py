"""One layer: attention and MLP, each in a residual with its norm."""

import jax
from flax import nnx

from olmo_hydra.config.model import BlockNorm
from olmo_hydra.model import norm
from olmo_hydra.model.attention import SelfAttention
from olmo_hydra.model.init import Init
from olmo_hydra.model.kernels import Attend
from olmo_hydra.model.mlp import SwiGLU
from olmo_hydra.model.rope import Rope


class Block(nnx.Module):
    """A layer with its norms placed as `cfg.block_norm` says.

    `reordered` (Olmo 2 and 3, arXiv 2501.00656) normalises what a sublayer adds to the residual, `pre` what it reads.
    """

    def __init__(self, init: Init, attend: Attend):
        cfg = init.cfg
        self.attention = SelfAttention(init, attend)
        self.attention_norm = norm.build(cfg, cfg.d_model, "embed")
        self.mlp = SwiGLU(init)
        self.mlp_norm = norm.build(cfg, cfg.d_model, "embed")
        self.block_norm = cfg.block_norm

    def __call__(
        self, x_BTD: jax.Array, rope: Rope, window: int | None, segments_BT: jax.Array | None = None
    ) -> jax.Array:
        if self.block_norm is BlockNorm.reordered:
            h_BTD = x_BTD + self.attention_norm(self.attention(x_BTD, rope, window, segments_BT))
            return h_BTD + self.mlp_norm(self.mlp(h_BTD))
        h_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rope, window, segments_BT)
        return h_BTD + self.mlp(self.mlp_norm(h_BTD))
