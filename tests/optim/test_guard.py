"""What is not finite is never applied, whatever the optimizer: to the bit, on any number of devices."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra import optim
from olmo_hydra.config.dtypes import DType

BAD = [math.nan, math.inf, -math.inf]
TINY = 1e-40  # subnormal


@pytest.fixture(params=["adamw", "mended", "compat", "bfloat16"])
def cfg(request, adamw, skip_step):
    made = {
        "adamw": adamw,
        "mended": skip_step,
        "compat": partial(skip_step, compat=True),
        "bfloat16": partial(adamw, mu_dtype=DType.bfloat16, nu_dtype=DType.bfloat16),
    }
    return made[request.param](clip_norm=None)


def updating(cfg):
    """`update(grads, state, params, loss) -> (params, state)` with the norm that the gradients have."""
    optimizer = optim.build(cfg, {"w": True})

    @jax.jit
    def update(grads, state, params, loss):
        updates, state = optimizer.update(
            grads, state, params, lr=jnp.float32(0.1), loss=loss, grad_norm=optax.tree.norm(grads)
        )
        return optax.apply_updates(params, updates), state

    return optimizer, update


def as_bytes(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_parameters_moments_and_count_stay_bit_for_bit(cfg, where, bad):
    optimizer, update = updating(cfg)
    params = {"w": jnp.array([0.0, -0.0, TINY, -3.5], jnp.float32)}
    state = optimizer.init(params)
    good = {"w": jnp.array([0.0, 0.5, -0.25, 1.0])}
    _, state = update(good, state, params, jnp.float32(3))
    grads = {"w": good["w"].at[2].set(bad)} if where == "gradient" else good
    after, skipped = update(grads, state, params, jnp.float32(bad if where == "loss" else 3))
    assert as_bytes(after) == as_bytes(params) and as_bytes(skipped.inner) == as_bytes(state.inner)
    moved, following = update(good, skipped, params, jnp.float32(3))
    assert as_bytes(moved) != as_bytes(params) and following.inner[1].steps == state.inner[1].steps + 1
    counts = [
        tuple(int(optim.metrics(one)[name]) for name in ("skipped", "skipped_total", "consecutive_skips"))
        for one in (state, skipped, following)
    ]
    assert counts == [(0, 0, 0), (1, 1, 1), (0, 1, 0)]


def test_adamw_with_a_nan_in_the_middle_is_adamw_without_it(adamw):
    """Against AdamW in float64, which never sees the bad update."""
    cfg, rng = adamw(clip_norm=None), np.random.default_rng()
    optimizer, update = updating(cfg)
    gradients = rng.normal(size=(12, 5)).astype(np.float32)
    start = rng.normal(size=5).astype(np.float32)
    params = {"w": jnp.asarray(start)}
    state = optimizer.init(params)
    for n, grads in enumerate(gradients):
        hit = grads.copy()
        hit[n % 5] = BAD[n % 3] if n in (4, 5, 6) else hit[n % 5]
        params, state = update({"w": jnp.asarray(hit)}, state, params, jnp.float32(3))

    w, m, v = start.astype(np.float64), np.zeros(5), np.zeros(5)
    for t, g in enumerate(np.delete(gradients, (4, 5, 6), axis=0).astype(np.float64), start=1):
        m, v = cfg.b1 * m + (1 - cfg.b1) * g, cfg.b2 * v + (1 - cfg.b2) * g**2
        m_hat, v_hat = m / (1 - cfg.b1**t), v / (1 - cfg.b2**t)
        w = w - 0.1 * (m_hat / (np.sqrt(v_hat) + cfg.eps) + cfg.weight_decay * w)
    np.testing.assert_allclose(params["w"], w, rtol=1e-5, atol=1e-6)
    assert state.skipped_total == 3 and state.consecutive_skips == 0 and state.inner[1].steps == 9


def test_consecutive_skips_count_on_and_start_anew(cfg):
    optimizer, update = updating(cfg)
    params = {"w": jnp.ones(3)}
    state, counted = optimizer.init(params), []
    for loss in (3, math.nan, math.nan, math.inf, 3, math.nan):
        params, state = update({"w": jnp.ones(3)}, state, params, jnp.float32(loss))
        counted.append(int(state.consecutive_skips))
    assert counted == [0, 1, 2, 3, 0, 1] and state.skipped_total == 4


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_element_on_one_of_eight_devices_skips_on_all(cfg, bad):
    mesh = Mesh(jax.devices()[:8], "fsdp")
    shared, everywhere = NamedSharding(mesh, PartitionSpec("fsdp")), NamedSharding(mesh, PartitionSpec())
    optimizer, update = updating(cfg)
    params = {"w": jax.device_put(np.linspace(-1, 1, 16, dtype=np.float32), shared)}
    state = jax.tree.map(
        lambda leaf: jax.device_put(leaf, shared if leaf.shape == (16,) else everywhere), optimizer.init(params)
    )
    grads = np.ones(16, np.float32)
    grads[11] = bad
    after, skipped = update({"w": jax.device_put(grads, shared)}, state, params, jnp.float32(3))
    assert as_bytes(after) == as_bytes(params) and as_bytes(skipped.inner) == as_bytes(state.inner)
    assert [int(shard.data) for shard in skipped.skipped.addressable_shards] == [1] * 8
