"""Causal self-attention: grouped queries, sliding windows, norms on queries and keys."""

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import ModelConfig, QKNorm
from olmo_hydra.model import norm
from olmo_hydra.model.linear import Linear
from olmo_hydra.model.rope import Rope, rotate

MIN_BLOCK, MAX_BLOCKS = 64, 8  # queries computed at once, and how many such blocks are compiled at most


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

    Queries go in blocks, each against the keys from the start of its window to its own end: nothing is computed above
    the diagonal or before the window but for the corners of a block. On CPU the softmax dominates a small model's step.
    """
    (B, T, H, D), K = q_BTHD.shape, k_BSKD.shape[2]
    q_BTKGD = q_BTHD.reshape(B, T, K, H // K, D)
    block = max(MIN_BLOCK, -(-T // MAX_BLOCKS))
    out = []
    for start in range(0, T, block):
        end = min(start + block, T)
        first = 0 if window is None else max(0, start - window + 1)
        k, v = k_BSKD[:, first:end], v_BSKD[:, first:end]
        logits_BKGTS = jnp.einsum("BTKGD,BSKD->BKGTS", q_BTKGD[:, start:end], k, preferred_element_type=jnp.float32)
        seen_TS = visible(jnp.arange(start, end), jnp.arange(first, end), window)
        weights_BKGTS = jax.nn.softmax(jnp.where(seen_TS, scale * logits_BKGTS, -jnp.inf), axis=-1)
        out.append(jnp.einsum("BKGTS,BSKD->BTKGD", weights_BKGTS.astype(v.dtype), v))
    return jnp.concatenate(out, axis=1).reshape(B, T, H, D)


def visible(queries_T: jax.Array, keys_S: jax.Array, window: int | None) -> jax.Array:
    """seen_TS: which key positions each query position sees."""
    age_TS = queries_T[:, None] - keys_S[None, :]
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
