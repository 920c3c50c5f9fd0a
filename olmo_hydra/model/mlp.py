"""The feed-forward half of a block."""

import jax
from flax import nnx

from olmo_hydra.config.remat import Point
from olmo_hydra.model.init import Init


class SwiGLU(nnx.Module):
    """`down(silu(gate(x)) * up(x))` (arXiv 2002.05202)."""

    def __init__(self, init: Init):
        d_model, d_ff = init.cfg.d_model, init.cfg.d_ff
        self.gate = init.linear((d_model, d_ff), ("embed", "mlp"), Point.gate)
        self.up = init.linear((d_model, d_ff), ("embed", "mlp"), Point.up, adds=True)
        self.down = init.linear((d_ff, d_model), ("mlp", "embed"), Point.down, adds=True)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            hidden_BTF = jax.nn.silu(self.gate(x_BTD)) * self.up(x_BTD)
            return self.down(hidden_BTF)
