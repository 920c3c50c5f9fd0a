"""Attention as XLA compiles it: blocks of queries, on any platform."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from olmo_hydra.config.mesh import balanced_parts
from olmo_hydra.config.remat import Point
from olmo_hydra.model.kernels.context import of_queries

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
    segments_BS: jax.Array | None = None,
    shard: jax.Array | None = None,
) -> jax.Array:
    """See `AttendShard`. Logits and softmax are fp32.

    Queries go in blocks, each against the keys of its window: what lies above the diagonal or before the window is not
    computed but for the corners of a block. On CPU the softmax dominates a small model's step.

    Where the window is short, all blocks are one batch: time and memory stay proportional to it, and the program small.
    Forward and backward of 8192 positions and two heads of 64 on two CPU cores: 0.09 s for a window of 64, where 8
    separate blocks take 0.98 s; 0.37 s for 1024, where they take 0.76 s. At 4 windows in a sequence nothing is gained.
    """
    options: dict[str, Any] = {"window": window, "scale": scale, "segments_BS": segments_BS}
    if shard is not None:
        out_BTHD = pairs(q_BTHD, k_BSKD, v_BSKD, **options, shard=shard)
    elif window is not None and q_BTHD.shape[1] >= BAND_FROM * window:
        out_BTHD = band(q_BTHD, k_BSKD, v_BSKD, **options)
    else:
        out_BTHD = blocks(q_BTHD, k_BSKD, v_BSKD, **options)
    return checkpoint_name(out_BTHD, Point.context.value)


def blocks(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BS: jax.Array | None,
) -> jax.Array:
    """Block after block, each with as many keys as it needs."""
    (B, T, H, D), (_, S, K, _) = q_BTHD.shape, k_BSKD.shape
    q_BTKGD = q_BTHD.reshape(B, T, K, H // K, D)
    block = max(MIN_BLOCK, -(-T // MAX_BLOCKS))
    out = []
    for start in range(S - T, S, block):  # positions among the keys
        end = min(start + block, S)
        first = 0 if window is None else max(0, start - window + 1)
        q = q_BTKGD[:, start - (S - T) : end - (S - T)]
        k, v = k_BSKD[:, first:end], v_BSKD[:, first:end]
        logits_BKGTS = jnp.einsum("BTKGD,BSKD->BKGTS", q, k, preferred_element_type=jnp.float32)
        seen = visible(jnp.arange(start, end), jnp.arange(first, end), window)
        if segments_BS is not None:
            same_BTS = segments_BS[:, start:end, None] == segments_BS[:, None, first:end]
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
    segments_BS: jax.Array | None,
) -> jax.Array:
    """All N blocks in one product, each against its own keys and those of the blocks that its window reaches."""
    (B, T, H, D), (_, S, K, _) = q_BTHD.shape, k_BSKD.shape
    block = max(MIN_BAND_BLOCK, window // BLOCKS_IN_WINDOW)
    N, before = -(-T // block), -(-(window - 1) // block)

    def in_blocks(x: jax.Array, first: int) -> jax.Array:
        """What ends with the queries as [B, N - first, block, ...], with zeros where there is no position."""
        ends = ((0, 0), (T - x.shape[1] - first * block, N * block - T)) + ((0, 0),) * (x.ndim - 2)
        return jnp.pad(x, ends).reshape(B, N - first, block, *x.shape[2:])

    def reached(x: jax.Array) -> jax.Array:
        """[B, S, ...] as [B, N, S, ...]: what lies in each block and in the `before` blocks before it."""
        padded = in_blocks(x, -before)
        return jnp.concatenate([padded[:, i : i + N] for i in range(before + 1)], axis=2)

    q_BNTKGD = in_blocks(q_BTHD, 0).reshape(B, N, block, K, H // K, D)
    k_BNSKD, v_BNSKD = reached(k_BSKD), reached(v_BSKD)
    logits_BNKGTS = jnp.einsum("BNTKGD,BNSKD->BNKGTS", q_BNTKGD, k_BNSKD, preferred_element_type=jnp.float32)
    starts_N = jnp.arange(N)[:, None] * block
    queries_NT, keys_NS = starts_N + jnp.arange(block), starts_N + jnp.arange(-before * block, block)
    seen = visible(queries_NT, keys_NS, window) & (keys_NS >= T - S)[:, None]
    if segments_BS is not None:
        segments_BT = of_queries(segments_BS, T, None)
        seen = seen & (in_blocks(segments_BT, 0)[..., :, None] == reached(segments_BS)[..., None, :])
    seen = seen.reshape(-1, N, 1, 1, *seen.shape[-2:])
    weights_BNKGTS = jax.nn.softmax(jnp.where(seen, scale * logits_BNKGTS, -jnp.inf), axis=-1)
    out_BNTKGD = jnp.einsum("BNKGTS,BNSKD->BNTKGD", weights_BNKGTS.astype(v_BNSKD.dtype), v_BNSKD)
    return out_BNTKGD.reshape(B, N * block, H, D)[:, :T]


def pairs(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BS: jax.Array | None,
    shard: jax.Array,
) -> jax.Array:
    """The two parts of a shard's queries, each with the parts of the keys up to its own: N pairs of parts.

    Which pairs depends on the shard, how many does not, so that one program computes them all in one product. The
    softmax of a part of queries runs over all of its pairs.
    """
    (B, T, H, D), (_, S, K, _) = q_BTHD.shape, k_BSKD.shape
    shards, P = S // T, T // 2
    first, second = balanced_parts(shard, shards)
    n_N = jnp.arange(2 * shards + 1)
    of_first_N = n_N <= first
    keys_N, queries_N = jnp.where(of_first_N, n_N, n_N - first - 1), jnp.where(of_first_N, first, second)

    def parts(x: jax.Array) -> jax.Array:
        return x.reshape(B, -1, P, *x.shape[2:])

    q_BNTKGD = jnp.take(parts(q_BTHD), jnp.where(of_first_N, 0, 1), axis=1).reshape(B, -1, P, K, H // K, D)
    k_BNSKD, v_BNSKD = (jnp.take(parts(x), keys_N, axis=1) for x in (k_BSKD, v_BSKD))
    logits_BNKGTS = jnp.einsum("BNTKGD,BNSKD->BNKGTS", q_BNTKGD, k_BNSKD, preferred_element_type=jnp.float32)
    inside_P = jnp.arange(P)
    seen = visible(queries_N[:, None] * P + inside_P, keys_N[:, None] * P + inside_P, window)
    if segments_BS is not None:
        segments_BNT, segments_BNS = (jnp.take(parts(segments_BS), part_N, axis=1) for part_N in (queries_N, keys_N))
        seen = seen & (segments_BNT[..., :, None] == segments_BNS[..., None, :])
    seen = seen.reshape(-1, len(n_N), 1, 1, P, P)
    logits_BNKGTS = jnp.where(seen, scale * logits_BNKGTS, -jnp.inf)

    part_2N = jnp.stack([of_first_N, ~of_first_N])
    highest = jnp.where(part_2N[:, :, None, None, None], logits_BNKGTS.max(axis=-1)[:, None], -jnp.inf).max(axis=2)
    highest_BNKGT = jnp.take(jax.lax.stop_gradient(highest), jnp.where(of_first_N, 0, 1), axis=1)
    weights_BNKGTS = jnp.exp(logits_BNKGTS - highest_BNKGT[..., None])
    total_B2TKG = jnp.einsum("BNKGTS,PN->BPTKG", weights_BNKGTS, part_2N.astype(jnp.float32))
    out_BNTKGD = jnp.einsum(
        "BNKGTS,BNSKD->BNTKGD", weights_BNKGTS.astype(v_BSKD.dtype), v_BNSKD, preferred_element_type=jnp.float32
    )
    out_B2TKGD = jnp.einsum("BNTKGD,PN->BPTKGD", out_BNTKGD, part_2N.astype(jnp.float32)) / total_B2TKG[..., None]
    return out_B2TKGD.astype(v_BSKD.dtype).reshape(B, T, H, D)


def visible(queries_T: jax.Array, keys_S: jax.Array, window: int | None) -> jax.Array:
    """seen_TS: which key positions each query position sees. Leading dimensions are kept."""
    age_TS = queries_T[..., :, None] - keys_S[..., None, :]
    return age_TS >= 0 if window is None else (age_TS >= 0) & (age_TS < window)
