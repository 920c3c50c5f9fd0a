from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from olmo_hydra.model.kernels.xla import attention, visible
from tests.model.reference import attend


def test_visible_counts_the_query_itself():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    positions = jnp.arange(4)
    np.testing.assert_array_equal(visible(positions, positions, window=2), np.array(expected, bool))
    np.testing.assert_array_equal(visible(positions, positions, window=None), np.tri(4, dtype=bool))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 or more queries, so that short sequences have several."""
    monkeypatch.setattr("olmo_hydra.model.kernels.xla.MIN_BLOCK", 4)
    monkeypatch.setattr("olmo_hydra.model.kernels.xla.MAX_BLOCKS", 3)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    positions=st.integers(1, 30),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4, 10]),
    window=st.none() | st.integers(1, 20),
)
def test_attention_equals_the_float64_reference(small_blocks, seed, positions, kv_heads, group, head_dim, window):
    rng = np.random.default_rng(seed)
    heads = kv_heads * group
    q_BTHD = rng.normal(size=(2, positions, heads, head_dim))
    k_BSKD, v_BSKD = rng.normal(size=(2, 2, positions, kv_heads, head_dim))
    compiled = jax.jit(partial(attention, window=window, scale=head_dim**-0.5))
    out_BTHD = compiled(*(jnp.asarray(x, jnp.float32) for x in (q_BTHD, k_BSKD, v_BSKD)))
    for b in range(2):
        for h in range(heads):
            expected_TD = attend(q_BTHD[b, :, h], k_BSKD[b, :, h // group], v_BSKD[b, :, h // group], window)
            np.testing.assert_allclose(out_BTHD[b, :, h], expected_TD, rtol=1e-5, atol=2e-6)


def test_logits_of_bf16_queries_are_fp32():
    """Logits near 100 would be off by up to a quarter in bf16, and the weights with them."""
    rng = np.random.default_rng()
    q, k, v = (jnp.asarray(rng.normal(size=(1, 9, 1, 4)), jnp.bfloat16) for _ in range(3))
    q, k = q.at[..., 0].set(10.0), k.at[..., 0].set(10.0)
    out = attention(q, k, v, window=None, scale=1.0)
    assert out.dtype == jnp.bfloat16
    q_TD, k_TD, v_TD = (np.asarray(x[0, :, 0], np.float64) for x in (q, k, v))
    expected = attend(2 * q_TD, k_TD, v_TD, None)  # twice: the reference divides by the root of 4
    np.testing.assert_allclose(out[0, :, 0].astype(jnp.float32), expected, atol=0.02)


def test_grouped_queries_equal_repeated_heads():
    rng = np.random.default_rng()
    q = jnp.asarray(rng.normal(size=(2, 9, 6, 4)), jnp.float32)
    k, v = jnp.asarray(rng.normal(size=(2, 2, 9, 2, 4)), jnp.float32)
    repeated = [jnp.repeat(x, 3, axis=2) for x in (k, v)]
    grouped = attention(q, k, v, window=4, scale=0.5)
    np.testing.assert_allclose(grouped, attention(q, *repeated, window=4, scale=0.5), rtol=1e-5, atol=1e-6)
