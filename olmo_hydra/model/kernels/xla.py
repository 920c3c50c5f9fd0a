"""Attention as XLA compiles it: blocks of queries, on any platform."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from olmo_hydra.config.remat import Point

MIN_BLOCK, MAX_BLOCKS = 64, 8  # queries computed at once, and how many such blocks are compiled at most
BAND_FROM = 8  # windows in a sequence from which all blocks of a sliding layer are one batch
MIN_BAND_BLOCK, BLOCKS_IN_WINDOW = 32, 4  # its blocks: a quarter of the window, but not tiny


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

    Queries go in blocks, each against the keys of its window: what lies above the diagonal or before the window is not
    computed but for the corners of a block. On CPU the softmax dominates a small model's step.

    Where the window is short, all blocks are one batch: time and memory stay proportional to it, and the program small.
    Forward and backward of 8192 positions and two heads of 64 on two CPU cores: 0.09 s for a window of 64, where 8
    separate blocks take 0.98 s; 0.37 s for 1024, where they take 0.76 s. At 4 windows in a sequence nothing is gained.
    """
    if window is not None and q_BTHD.shape[1] >= BAND_FROM * window:
        out_BTHD = band(q_BTHD, k_BSKD, v_BSKD, window=window, scale=scale, segments_BT=segments_BT)
    else:
        out_BTHD = blocks(q_BTHD, k_BSKD, v_BSKD, window=window, scale=scale, segments_BT=segments_BT)
    return checkpoint_name(out_BTHD, Point.context.value)


def blocks(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BT: jax.Array | None,
) -> jax.Array:
    """Block after block, each with as many keys as it needs."""
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


def band(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int,
    scale: float,
    segments_BT: jax.Array | None,
) -> jax.Array:
    """All N blocks in one product, each against its own keys and those of the blocks that its window reaches."""
    (B, T, H, D), K = q_BTHD.shape, k_BSKD.shape[2]
    block = max(MIN_BAND_BLOCK, window // BLOCKS_IN_WINDOW)
    N, before = -(-T // block), -(-(window - 1) // block)

    def in_blocks(x: jax.Array, first: int) -> jax.Array:
        """[B, T, ...] as [B, N - first, block, ...], with zeros where there is no position."""
        ends = ((0, 0), (-first * block, N * block - T)) + ((0, 0),) * (x.ndim - 2)
        return jnp.pad(x, ends).reshape(B, N - first, block, *x.shape[2:])

    def reached(x: jax.Array) -> jax.Array:
        """[B, T, ...] as [B, N, S, ...]: what lies in each block and in the `before` blocks before it."""
        padded = in_blocks(x, -before)
        return jnp.concatenate([padded[:, i : i + N] for i in range(before + 1)], axis=2)

    q_BNTKGD = in_blocks(q_BTHD, 0).reshape(B, N, block, K, H // K, D)
    k_BNSKD, v_BNSKD = reached(k_BSKD), reached(v_BSKD)
    logits_BNKGTS = jnp.einsum("BNTKGD,BNSKD->BNKGTS", q_BNTKGD, k_BNSKD, preferred_element_type=jnp.float32)
    starts_N = jnp.arange(N)[:, None] * block
    queries_NT, keys_NS = starts_N + jnp.arange(block), starts_N + jnp.arange(-before * block, block)
    seen = visible(queries_NT, keys_NS, window) & (keys_NS >= 0)[:, None]
    if segments_BT is not None:
        seen = seen & (in_blocks(segments_BT, 0)[..., :, None] == reached(segments_BT)[..., None, :])
    seen = seen.reshape(-1, N, 1, 1, *seen.shape[-2:])
    weights_BNKGTS = jax.nn.softmax(jnp.where(seen, scale * logits_BNKGTS, -jnp.inf), axis=-1)
    out_BNTKGD = jnp.einsum("BNKGTS,BNSKD->BNTKGD", weights_BNKGTS.astype(v_BNSKD.dtype), v_BNSKD)
    return out_BNTKGD.reshape(B, N * block, H, D)[:, :T]


def visible(queries_T: jax.Array, keys_S: jax.Array, window: int | None) -> jax.Array:
    """seen_TS: which key positions each query position sees. Leading dimensions are kept."""
    age_TS = queries_T[..., :, None] - keys_S[..., None, :]
    return age_TS >= 0 if window is None else (age_TS >= 0) & (age_TS < window)
