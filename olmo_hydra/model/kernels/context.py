"""Attention of a shard along `context`: what it needs of the others, and then computes. Inside a `shard_map`."""

import jax
import jax.numpy as jnp

from olmo_hydra.config.mesh import balanced_parts, halo
from olmo_hydra.model.kernels.attend import AttendShard

AXIS = "context"


def attention(
    attend: AttendShard,
    q_BTHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BT: jax.Array | None,
    shards: int,
) -> jax.Array:
    """out_BTHD of the T positions of this shard, an even number; arguments as `Attend`'s, of this shard alone."""
    before = halo(q_BTHD.shape[1] * shards, window)
    if before is None:
        return _of_all_keys(attend, q_BTHD, k_BTKD, v_BTKD, segments_BT, window, scale, shards)
    if segments_BT is None:
        segments_BT = jnp.zeros(q_BTHD.shape[:2], jnp.int32)
    k, v = (_after_those_before(x, before, shards) for x in (k_BTKD, v_BTKD))
    # What has no position comes as zeros, which then number no document.
    segments = _after_those_before(segments_BT + 1, before, shards)
    return attend(q_BTHD, k, v, window=window, scale=scale, segments_BS=segments)


def _after_those_before(x_BT: jax.Array, count: int, shards: int) -> jax.Array:
    """This shard's positions after the last `count` before them, from as many shards as it takes; zeros before all."""
    positions = x_BT.shape[1]
    parts = [x_BT]
    for away in range(1, -(-count // positions) + 1):
        taken = min(positions, count - (away - 1) * positions)
        follows = [(shard, shard + away) for shard in range(shards - away)]
        parts.insert(0, jax.lax.ppermute(x_BT[:, positions - taken :], AXIS, follows))
    return jnp.concatenate(parts, axis=1)


def _of_all_keys(
    attend: AttendShard,
    q_BTHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKD: jax.Array,
    segments_BT: jax.Array | None,
    window: int | None,
    scale: float,
    shards: int,
) -> jax.Array:
    """Shards gather all keys, and exchange half of their queries, so that each sees as many keys (`balanced_parts`)."""

    def exchanged(x_BT: jax.Array) -> jax.Array:
        first, second = jnp.split(x_BT, 2, axis=1)
        mirrored = [(shard, shards - 1 - shard) for shard in range(shards)]
        return jnp.concatenate([first, jax.lax.ppermute(second, AXIS, mirrored)], axis=1)

    def whole(x_BT: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x_BT, AXIS, axis=1, tiled=True)

    segments_BS = None if segments_BT is None else whole(segments_BT)
    out_BTHD = attend(
        exchanged(q_BTHD),
        whole(k_BTKD),
        whole(v_BTKD),
        window=window,
        scale=scale,
        segments_BS=segments_BS,
        shard=jax.lax.axis_index(AXIS),
    )
    return exchanged(out_BTHD)


def of_queries(x_BS: jax.Array, queries: int, shard: jax.Array | None) -> jax.Array:
    """What arrays over the keys of `AttendShard` have at the queries."""
    keys = x_BS.shape[1]
    if shard is None:
        return x_BS[:, keys - queries :]
    size = queries // 2
    own = [jax.lax.dynamic_slice_in_dim(x_BS, part * size, size, 1) for part in balanced_parts(shard, keys // queries)]
    return jnp.concatenate(own, axis=1)
