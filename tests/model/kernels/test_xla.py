import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from olmo_hydra.model.kernels import xla
from olmo_hydra.model.kernels.xla import attention, visible
from tests.model.kernels.reference import Case, assert_equals_reference, draw, expected
from tests.model.reference import attend


def test_visible_counts_the_query_itself():
    wanted = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    positions = jnp.arange(4)
    np.testing.assert_array_equal(visible(positions, positions, window=2), np.array(wanted, bool))
    np.testing.assert_array_equal(visible(positions, positions, window=None), np.tri(4, dtype=bool))


def test_gradients_of_the_reference_are_its_finite_differences():
    """One direction in all of q, k and v: what every kernel is compared with is right itself."""
    rng = np.random.default_rng()
    case = Case(positions=9, window=4, documents=2)
    arrays = draw(case, rng.integers(2**32))
    direction = [rng.normal(size=x.shape) for x in arrays[:3]]

    def value(step):
        moved = (x + step * d for x, d in zip(arrays[:3], direction, strict=True))
        return (expected(case, arrays._replace(**dict(zip(arrays._fields, moved, strict=False))))[0] * arrays[3]).sum()

    _, *grads = expected(case, arrays)
    slope = sum((grad * d).sum() for grad, d in zip(grads, direction, strict=True))
    np.testing.assert_allclose((value(1e-5) - value(-1e-5)) / 2e-5, slope, rtol=1e-6, atol=1e-6)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 or more queries, so that short sequences have several."""
    for name, value in {"MIN_BLOCK": 4, "MAX_BLOCKS": 3, "MIN_BAND_BLOCK": 3, "BAND_FROM": 3}.items():
        monkeypatch.setattr(xla, name, value)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    positions=st.integers(1, 40),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4, 10]),
    window=st.none() | st.integers(1, 20) | st.integers(1, 4),
    documents=st.sampled_from([0, 1, 4]),
)
def test_attention_equals_the_float64_reference(small_blocks, seed, **case):
    assert_equals_reference(attention, Case(**case), seed)


@pytest.mark.parametrize("positions, window", [(256, 32), (300, 33), (257, 1), (100, 200)])
def test_blocks_of_the_usual_size(positions, window):
    case = Case(positions, window, documents=3, batch=1, kv_heads=1)
    assert_equals_reference(attention, case, np.random.default_rng().integers(2**32))


def test_work_of_a_sliding_layer_is_proportional_to_its_window():
    """By the compiler's count of operations, forward and backward: per query, 16 times the sequence costs the same."""

    def flops(positions, window):
        q, k = (jax.ShapeDtypeStruct((1, positions, heads, 8), jnp.float32) for heads in (2, 1))
        total = jax.grad(lambda q, k, v: attention(q, k, v, window=window, scale=1.0).sum(), argnums=(0, 1, 2))
        return jax.jit(total).lower(q, k, k).cost_analysis()["flops"] / positions

    assert flops(16 * 512, 64) == pytest.approx(flops(512, 64), rel=0.05)
    assert flops(2048, 128) == pytest.approx(2 * flops(2048, 64), rel=0.35)
    assert flops(2048, 64) < 0.1 * flops(2048, None)


def test_logits_of_bf16_queries_are_fp32():
    """Logits near 100 would be off by up to a quarter in bf16, and the weights with them."""
    rng = np.random.default_rng()
    q, k, v = (jnp.asarray(rng.normal(size=(1, 9, 1, 4)), jnp.bfloat16) for _ in range(3))
    q, k = q.at[..., 0].set(10.0), k.at[..., 0].set(10.0)
    for window in (None, 1):
        out = attention(q, k, v, window=window, scale=1.0)
        assert out.dtype == jnp.bfloat16
        q_TD, k_TD, v_TD = (np.asarray(x[0, :, 0], np.float64) for x in (q, k, v))
        wanted = attend(2 * q_TD, k_TD, v_TD, window)  # twice: the reference divides by the root of 4
        np.testing.assert_allclose(out[0, :, 0].astype(jnp.float32), wanted, atol=0.02)


def test_grouped_queries_equal_repeated_heads():
    rng = np.random.default_rng()
    q = jnp.asarray(rng.normal(size=(2, 9, 6, 4)), jnp.float32)
    k, v = jnp.asarray(rng.normal(size=(2, 2, 9, 2, 4)), jnp.float32)
    repeated = [jnp.repeat(x, 3, axis=2) for x in (k, v)]
    grouped = attention(q, k, v, window=4, scale=0.5)
    np.testing.assert_allclose(grouped, attention(q, *repeated, window=4, scale=0.5), rtol=1e-5, atol=1e-6)
