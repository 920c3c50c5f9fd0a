"""Attention as XLA compiles it: blocks of queries, on any platform."""

import jax
import jax.numpy as jnp

MIN_BLOCK, MAX_BLOCKS = 64, 8  # queries computed at once, and how many such blocks are compiled at most


def attention(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BT: jax.Array | None = None,
) -> jax.Array:
    """See `Attend`. Logits and softmax are fp32.

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
        seen = visible(jnp.arange(start, end), jnp.arange(first, end), window)
        if segments_BT is not None:
            same_BTS = segments_BT[:, start:end, None] == segments_BT[:, None, first:end]
            seen = (seen & same_BTS)[:, None, None]
        weights_BKGTS = jax.nn.softmax(jnp.where(seen, scale * logits_BKGTS, -jnp.inf), axis=-1)
        out.append(jnp.einsum("BKGTS,BSKD->BTKGD", weights_BKGTS.astype(v.dtype), v))
    return jnp.concatenate(out, axis=1).reshape(B, T, H, D)


def visible(queries_T: jax.Array, keys_S: jax.Array, window: int | None) -> jax.Array:
    """seen_TS: which key positions each query position sees."""
    age_TS = queries_T[:, None] - keys_S[None, :]
    return age_TS >= 0 if window is None else (age_TS >= 0) & (age_TS < window)
