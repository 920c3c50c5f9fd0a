"""Norm, RoPE, initialisation and projections, each against a known answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.model import Attention, InitMethod
from olmo_hydra.config.remat import Point
from olmo_hydra.model import init, norm, rope
from olmo_hydra.model.linear import Embedding
from olmo_hydra.model.params import named


def test_rms_norm_known_answer(config):
    layer = norm.build(config(norm_eps=1.0), 4, "embed")
    layer.weight[...] = jnp.array([1.0, 2.0, 3.0, 4.0])
    # mean square 8 and eps 1: every element is divided by 3
    x = jnp.array([[0.0, 4.0, 0.0, -4.0]])
    np.testing.assert_allclose(layer(x), [[0, 8 / 3, 0, -16 / 3]], rtol=1e-6)


def test_norm_and_rope_of_bf16_are_those_of_fp32_rounded(config):
    layer = norm.build(config(), 24, "embed")
    layer.weight[...] = jnp.asarray(np.random.default_rng().normal(size=24), jnp.float32)
    x_BTHD = jnp.asarray(np.random.default_rng().normal(size=(2, 7, 3, 24)), jnp.bfloat16)
    for layer_or_rotation in (
        layer,
        lambda x: rope.rotate(
            x, rope.tables(rope.frequencies(config(rope_theta=1e4, head_dim=24), Attention.full), jnp.arange(7))
        ),
    ):
        y_BTHD = layer_or_rotation(x_BTHD)
        assert y_BTHD.dtype == jnp.bfloat16
        expected = layer_or_rotation(x_BTHD.astype(jnp.float32)).astype(jnp.bfloat16)
        np.testing.assert_array_equal(y_BTHD.astype(jnp.float32), expected.astype(jnp.float32))


def test_rope_known_answer(config):
    tables = rope.tables(rope.frequencies(config(head_dim=4, rope_theta=100.0), Attention.full), jnp.arange(3))
    angles = np.array([[0, 0], [1, 0.1], [2, 0.2]])  # theta^0 and theta^-1/2
    np.testing.assert_allclose(tables.cos_TP, np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(tables.sin_TP, np.sin(angles), rtol=1e-6)
    x = jnp.zeros((1, 3, 1, 4)).at[0, :, 0, 1].set(1.0)
    expected = np.stack([0 * angles[:, 1], np.cos(angles[:, 1]), 0 * angles[:, 1], np.sin(angles[:, 1])], -1)
    np.testing.assert_allclose(rope.rotate(x, tables)[0, :, 0], expected, atol=1e-7)


def test_rope_frequencies_of_olmo3(config):
    """Olmo 3's own (head dimension 128, theta 5e5); sin of position 1 is the frequency where that is small."""
    tables = rope.tables(rope.frequencies(config(head_dim=128), Attention.sliding), jnp.arange(2))
    sin_P = np.asarray(tables.sin_TP)[1]
    np.testing.assert_allclose(sin_P[16], np.sin(0.03760603), rtol=1e-6)
    np.testing.assert_allclose(sin_P[63], 3.068926e-7 * 8, rtol=1e-6)  # the table's is divided by YaRN's factor


def test_yarn_of_olmo3(config):
    """Stage 3's own: OLMo-core 3.0.0, measured (factor 8, head dimension 128, theta 5e5, 8192 positions before)."""
    shape = {"head_dim": 128, "rope_theta": 5e5, "yarn_original_len": 8192, "yarn_beta_fast": 32, "yarn_beta_slow": 1}
    cfg = config(**shape, yarn_factor=8.0)
    found = rope.frequencies(cfg, Attention.full)
    assert found.length == pytest.approx(1.2079441541679836, rel=1e-15)
    golden = {0: 1.0, 16: 0.03760603, 18: 0.02495541, 24: 0.00504052, 30: 8.14840e-4, 35: 9.556212e-5, 40: 3.428102e-5}
    for pair, expected in (golden | {63: 3.068926e-7}).items():
        assert found.radians[pair] == pytest.approx(expected, rel=1e-6), pair
    assert rope.frequencies(cfg, Attention.sliding) == rope.frequencies(config(**shape), Attention.full)
    unchanged = rope.frequencies(config(**shape, yarn_factor=1.0), Attention.full)
    plain = rope.frequencies(config(**shape), Attention.full)
    assert unchanged.length == 1 and unchanged.radians == pytest.approx(plain.radians, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=3))
def test_positions_restart_at_each_document(lengths):
    width = max(map(sum, lengths))
    rows = [[*row, width - sum(row)] for row in lengths]  # what is left of a row is one more document
    segments_BT = np.array([np.repeat(np.arange(len(row)), row) for row in rows])
    expected = [np.concatenate([np.arange(length) for length in row]) for row in rows]
    np.testing.assert_array_equal(rope.restarted(jnp.asarray(segments_BT)), expected)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.integers(0, 40))
def test_rope_depends_on_distance_alone(seed, shift):
    rng = np.random.default_rng(seed)
    tables = rope.tables(rope.Frequencies(tuple(5e5 ** (-np.arange(4) / 4))), jnp.arange(64))
    q, k = (jnp.tile(jnp.asarray(rng.normal(size=8), jnp.float32), (1, 64, 1, 1)) for _ in range(2))
    products = np.asarray(jnp.einsum("BTHD,BSHD->TS", rope.rotate(q, tables), rope.rotate(k, tables)))
    np.testing.assert_allclose(products[20 + shift, 5 + shift], products[20, 5], atol=2e-5)


def test_initial_values_are_a_cut_normal(config):
    std, cut, n = 0.02, 3.0, 400_000
    draw = init.Init(config(), nnx.Rngs(np.random.randint(2**31)))
    values = np.asarray(draw.linear((n // 100, 100), ("embed", "mlp"), Point.gate).weight[...]).ravel()
    law = stats.truncnorm(-cut, cut, scale=std)  # N(0, std) cut, not rescaled to std
    assert np.abs(values).max() <= cut * std * (1 + 1e-6)
    assert np.abs(values).max() > 0.99 * cut * std
    assert abs(values.mean()) < 5 * law.std() / np.sqrt(n)
    assert abs(values.std() / law.std() - 1) < 5 / np.sqrt(2 * n)
    assert law.std() == pytest.approx(0.98658 * std, rel=1e-4)
    assert stats.kstest(values[:50_000], law.cdf).pvalue > 1e-5


@pytest.mark.parametrize("method", InitMethod)
def test_standard_deviations_of_initialisations(config, build, method):
    """OLMo-core 3.0.0, `nn/transformer/init.py`: what each method gives each matrix of a layer."""
    cfg = config(init_method=method, d_model=96, d_ff=160, n_layers=2, vocab_size=500)
    model = jax.jit(lambda: nnx.state(build(cfg), nnx.Param))()
    q_width = cfg.n_heads * cfg.head_dim
    inputs = {"q": 96, "k": 96, "v": 96, "out": q_width, "gate": 96, "up": 96, "down": 160}

    def expected(name: str, layer: int) -> float:
        if method is InitMethod.fan_in:
            return inputs[name] ** -0.5
        if method is InitMethod.normal or name not in ("out", "up", "down"):
            return 0.02
        return 0.02 / (2 * (cfg.n_layers if method is InitMethod.llama else layer + 1)) ** 0.5

    def spread(values: jax.Array, std: float, cut: bool = True) -> None:
        law = stats.truncnorm(-3, 3) if cut else stats.norm()
        values = np.asarray(values)
        assert values.std() == pytest.approx(std * law.std(), rel=6 / np.sqrt(2 * values.size))
        assert (np.abs(values).max() <= 3.0001 * std) == cut

    params = named(model)
    for layer in range(cfg.n_layers):
        for name in inputs:
            room = "mlp" if name in ("gate", "up", "down") else "attention"
            spread(params[f"blocks.{layer}.{room}.{name}.weight"][0], expected(name, layer))
    normal = method is InitMethod.normal
    spread(params["embedding.weight"], 0.02 if normal else 1.0, cut=normal)
    spread(params["head.weight"], 0.02 if normal else 96**-0.5)


def test_parameter_dtype(config):
    cfg = config(param_dtype=DType.bfloat16)
    assert init.Init(cfg, nnx.Rngs(0)).linear((3, 2), ("embed", "mlp"), Point.gate).weight.dtype == jnp.bfloat16
    assert init.ones(cfg, 3, "embed").dtype == jnp.bfloat16


def test_linear_keeps_leading_axes(config):
    rng = np.random.default_rng()
    x = rng.normal(size=(2, 3, 6)).astype(np.float32)
    for flat in (True, False):
        layer = init.Init(config(), nnx.Rngs(0), one_token_axis=flat).linear((6, 4), ("embed", "mlp"), Point.gate)
        np.testing.assert_allclose(layer(jnp.asarray(x)), x @ np.asarray(layer.weight[...]), rtol=1e-5, atol=1e-6)


def test_embedding_adds_gradients_of_a_repeated_token_in_fp32(config):
    """1 + 2^-9 is lost in bf16: the sum over occurrences must not be made there."""
    weight = init.Init(config(), nnx.Rngs(0)).embedding((56, 24), ("vocab", "embed"))
    table = Embedding(weight, DType.bfloat16)
    tokens_BT = jnp.array([[5, 5]])
    weight_BT1 = jnp.array([[[1.0], [2.0**-9]]], jnp.bfloat16)
    grad = jax.grad(lambda t: (t(tokens_BT) * weight_BT1).sum().astype(jnp.float32))(table)
    np.testing.assert_array_equal(grad.weight[...][5], np.full(24, 1 + 2.0**-9, np.float32))
