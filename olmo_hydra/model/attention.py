"""Causal self-attention: grouped queries, sliding windows, norms on queries and keys."""

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import ModelConfig, QKNorm
from olmo_hydra.model import norm
from olmo_hydra.model.linear import Linear
from olmo_hydra.model.rope import Rope, rotate


def attention(
    q_BTHD: jax.Array, k_BSKD: jax.Array, v_BSKD: jax.Array, *, window: int | None, scale: float
) -> jax.Array:
    """Softmax attention of every query over its own position and those before it.

    Args:
      q_BTHD: Queries; consecutive groups of H/K heads share a key-value head.
      k_BSKD: Keys, at the same positions as the queries (S = T).
      v_BSKD: Values.
      window: Query i sees keys i-window+1 to i; null for all keys up to i.
      scale: Factor of the dot products.

    Returns:
      out_BTHD in the dtype of the values. Logits and softmax are fp32.
    """
    (B, T, H, D), K = q_BTHD.shape, k_BSKD.shape[2]
    q_BTKGD = q_BTHD.reshape(B, T, K, H // K, D)
    logits_BKGTS = scale * jnp.einsum("BTKGD,BSKD->BKGTS", q_BTKGD, k_BSKD, preferred_element_type=jnp.float32)
    weights_BKGTS = jax.nn.softmax(jnp.where(visible(T, window), logits_BKGTS, -jnp.inf), axis=-1)
    out_BTKGD = jnp.einsum("BKGTS,BSKD->BTKGD", weights_BKGTS.astype(v_BSKD.dtype), v_BSKD)
    return out_BTKGD.reshape(B, T, H, D)


def visible(positions: int, window: int | None) -> jax.Array:
    """seen_TS: which key each query sees.

    Written as comparisons of positions, which XLA hoists out of the loop over layers or fuses into the softmax.
    """
    position = jnp.arange(positions)
    age_TS = position[:, None] - position[None, :]
    return age_TS >= 0 if window is None else (age_TS >= 0) & (age_TS < window)


class SelfAttention(nnx.Module):
    """Projections, norms and rotation around `attention`.

    `qk_norm=projection` normalises all heads of a projection at once (Olmo 2 and 3, arXiv 2501.00656), `head` each head
    by itself with one gain for all of them; both before the rotation.
    """

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        assert cfg.n_heads is not None and cfg.n_kv_heads is not None
        self.head_dim = cfg.head_dim
        q_width, kv_width = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.q = Linear(cfg, (cfg.d_model, q_width), ("embed", "heads"), rngs=rngs)
        self.k = Linear(cfg, (cfg.d_model, kv_width), ("embed", "kv_heads"), rngs=rngs)
        self.v = Linear(cfg, (cfg.d_model, kv_width), ("embed", "kv_heads"), rngs=rngs)
        self.out = Linear(cfg, (q_width, cfg.d_model), ("heads", "embed"), rngs=rngs)
        self.qk_norm = cfg.qk_norm
        if cfg.qk_norm is QKNorm.projection:
            self.q_norm = norm.build(cfg, q_width, "heads")
            self.k_norm = norm.build(cfg, kv_width, "kv_heads")
        elif cfg.qk_norm is QKNorm.head:
            self.q_norm = norm.build(cfg, cfg.head_dim, "head_dim")
            self.k_norm = norm.build(cfg, cfg.head_dim, "head_dim")

    def __call__(self, x_BTD: jax.Array, rope: Rope, window: int | None) -> jax.Array:
        with jax.named_scope("attention"):
            q, k = self.q(x_BTD), self.k(x_BTD)
            if self.qk_norm is QKNorm.projection:
                q, k = self.q_norm(q), self.k_norm(k)
            q_BTHD, k_BSKD, v_BSKD = (self._heads(x) for x in (q, k, self.v(x_BTD)))
            if self.qk_norm is QKNorm.head:
                q_BTHD, k_BSKD = self.q_norm(q_BTHD), self.k_norm(k_BSKD)
            q_BTHD, k_BSKD = rotate(q_BTHD, rope), rotate(k_BSKD, rope)
            y_BTHD = attention(q_BTHD, k_BSKD, v_BSKD, window=window, scale=self.head_dim**-0.5)
            return self.out(y_BTHD.reshape(*x_BTD.shape[:-1], -1))

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)
