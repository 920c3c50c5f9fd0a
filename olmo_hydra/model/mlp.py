"""The feed-forward half of a block."""

import jax
from flax import nnx

from olmo_hydra.config.model import ModelConfig
from olmo_hydra.model.linear import Linear


class SwiGLU(nnx.Module):
    """`down(silu(gate(x)) * up(x))` (arXiv 2002.05202)."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        self.gate = Linear(cfg, (cfg.d_model, cfg.d_ff), ("embed", "mlp"), rngs=rngs)
        self.up = Linear(cfg, (cfg.d_model, cfg.d_ff), ("embed", "mlp"), rngs=rngs)
        self.down = Linear(cfg, (cfg.d_ff, cfg.d_model), ("mlp", "embed"), rngs=rngs)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            hidden_BTF = jax.nn.silu(self.gate(x_BTD)) * self.up(x_BTD)
            return self.down(hidden_BTF)
