"""The feed-forward half of a block."""

import jax
from flax import nnx

from olmo_hydra.config.remat import Point
from olmo_hydra.model.init import Init
from olmo_hydra.model.linear import Linear


class SwiGLU(nnx.Module):
    """`down(silu(gate(x)) * up(x))` (arXiv 2002.05202)."""

    def __init__(self, init: Init):
        d_model, d_ff = init.cfg.d_model, init.cfg.d_ff
        self.gate = Linear(init.matrix((d_model, d_ff), ("embed", "mlp")), point=Point.gate)
        self.up = Linear(init.matrix((d_model, d_ff), ("embed", "mlp"), adds=True), point=Point.up)
        self.down = Linear(init.matrix((d_ff, d_model), ("mlp", "embed"), adds=True), point=Point.down)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            hidden_BTF = jax.nn.silu(self.gate(x_BTD)) * self.up(x_BTD)
            return self.down(hidden_BTF)
