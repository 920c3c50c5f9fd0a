from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from olmo_hydra.config.data import Positions
from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import Attention, BlockNorm, QKNorm
from olmo_hydra.config.remat import Point, Remat
from olmo_hydra.model import init
from olmo_hydra.model.decoder import stacked_blocks
from olmo_hydra.model.kernels import xla
from olmo_hydra.model.params import named
from tests.model.reference import forward

# Compiling is most of what these tests cost, and those of gradients cost most.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize("qk_norm", QKNorm)
def test_parameter_count_of_qk_norms(config, build, qk_norm):
    cfg = config(qk_norm=qk_norm)
    params = nnx.state(nnx.eval_shape(lambda: build(cfg)))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == cfg.num_params


def tokens_of(cfg, rng, batch=2, positions=13):
    return jnp.asarray(rng.integers(0, cfg.vocab_size, (batch, positions)), jnp.int32)


@pytest.mark.parametrize(
    "changes, layer_loop",
    [({"qk_norm": qk, "block_norm": block}, LayerLoop.scan) for qk, block in product(QKNorm, BlockNorm)]
    + [
        ({"n_kv_heads": 1}, LayerLoop.unrolled),
        ({"n_kv_heads": 4, "window_pattern": [Attention.full]}, LayerLoop.scan),
        ({"yarn_factor": 8.0}, LayerLoop.scan),
    ],
)
def test_logits_equal_the_float64_reference(config, lively, changes, layer_loop):
    rng = np.random.default_rng()
    cfg = config(**changes)
    graph, params = lively(cfg, seed=rng.integers(2**32), layer_loop=layer_loop)
    tokens_BT = tokens_of(cfg, rng)
    logits_BTV = jax.jit(nnx.merge(graph, params))(tokens_BT)
    assert logits_BTV.dtype == jnp.float32 and logits_BTV.shape == (2, 13, cfg.padded_vocab)
    for tokens_T, logits_TV in zip(tokens_BT, logits_BTV, strict=True):
        expected_TV = forward(cfg, named(params), np.asarray(tokens_T))
        assert np.abs(expected_TV).mean() > 0.1
        np.testing.assert_allclose(logits_TV[:, : cfg.vocab_size], expected_TV, rtol=0, atol=2e-5)
        assert (jax.nn.softmax(logits_TV)[:, cfg.vocab_size :] == 0).all(), "padding of the vocabulary is no token"


def test_a_head_of_zeros_gives_the_ids_that_exist_one_probability(config, lively):
    rng = np.random.default_rng()
    cfg = config()
    assert cfg.padded_vocab > cfg.vocab_size
    graph, params = lively(cfg, seed=rng.integers(2**32))
    params["head"]["weight"][...] = jnp.zeros_like(params["head"]["weight"][...])
    nats_T = jax.jit(nnx.merge(graph, params).nats)(tokens_of(cfg, rng, batch=1), tokens_of(cfg, rng, batch=1))
    np.testing.assert_allclose(nats_T, np.log(cfg.vocab_size), rtol=3e-7)


DOCUMENTS = (slice(0, 4), slice(4, 11), slice(11, 13))
SEGMENTS_BT = np.array([[0] * 4 + [1] * 7 + [2] * 2])


@pytest.mark.parametrize("changes", [{}, {"yarn_factor": 8.0}], ids=["plain", "yarn"])
def test_documents_of_one_row_are_each_alone(config, lively, changes):
    """Wherever positions start: what a document sees depends on distances alone."""
    rng = np.random.default_rng()
    cfg, seed = config(**changes), rng.integers(2**32)
    tokens_BT = tokens_of(cfg, rng, batch=1)
    found = {}
    for positions in Positions:
        graph, params = lively(cfg, seed, positions=positions)
        model = jax.jit(nnx.merge(graph, params))
        found[positions] = np.asarray(model(tokens_BT, SEGMENTS_BT))[0, :, : cfg.vocab_size]
        unmasked = np.asarray(model(tokens_BT))[0, :, : cfg.vocab_size]
        assert np.abs(found[positions] - unmasked)[4:].max() > 1e-2
    alone = [forward(cfg, named(params), np.asarray(tokens_BT[0, cut])) for cut in DOCUMENTS]
    for logits_TV in found.values():
        np.testing.assert_allclose(logits_TV, np.concatenate(alone), rtol=0, atol=2e-5)
    continued, restarted = found[Positions.continued], found[Positions.restarted]
    assert (continued[:4] == restarted[:4]).all() and (continued[4:] != restarted[4:]).any(), "other rotations"


@pytest.mark.parametrize("documents", [(slice(0, 13),), DOCUMENTS], ids=["one document", "three, restarted"])
def test_gradients_equal_finite_differences_of_the_reference(config, lively, documents):
    rng = np.random.default_rng()
    cfg = config()
    graph, params = lively(cfg, seed=rng.integers(2**32), positions=Positions.restarted)
    tokens_BT = tokens_of(cfg, rng, batch=1)
    weight_TV = rng.normal(size=(13, cfg.vocab_size))
    segments_BT = None if len(documents) == 1 else SEGMENTS_BT

    def weighted(params):
        return (nnx.merge(graph, params)(tokens_BT, segments_BT)[0, :, : cfg.vocab_size] * weight_TV).mean()

    def reference(values):
        logits = [forward(cfg, values, np.asarray(tokens_BT[0, document])) for document in documents]
        return (np.concatenate(logits) * weight_TV).mean()

    grads = named(quick_jit(jax.grad(weighted))(params))
    values = {name: np.asarray(value, np.float64) for name, value in named(params).items()}
    for name, value in values.items():
        direction = rng.normal(size=value.shape) / np.sqrt(value.size)
        ahead, behind = (reference({**values, name: value + step * direction}) for step in (1e-5, -1e-5))
        scale = np.linalg.norm(grads[name]) / np.sqrt(value.size)
        np.testing.assert_allclose(
            (grads[name] * direction).sum(), (ahead - behind) / 2e-5, rtol=2e-4, atol=1e-4 * scale, err_msg=name
        )


def test_loop_and_remat_change_no_value(config, lively):
    rng = np.random.default_rng()
    cfg, seed = config(qk_norm=QKNorm.none, n_layers=2, window_pattern=[Attention.sliding]), rng.integers(2**32)
    tokens_BT = tokens_of(cfg, rng)
    weight_BTV = rng.normal(size=(2, 13, cfg.vocab_size)).astype(np.float32)

    def value_and_grads(layer_loop, remat, on_host=frozenset()):
        graph, params = lively(cfg, seed, layer_loop=layer_loop, remat=remat, on_host=on_host)

        def weighted(params):
            return (nnx.merge(graph, params)(tokens_BT)[..., : cfg.vocab_size] * weight_BTV).mean()

        return quick_jit(jax.value_and_grad(weighted))(params)

    some = (Remat.none, Remat.minimal_with_context, Remat.save_qkv_proj, Remat.full)
    offloaded = (LayerLoop.scan, Remat.minimal_with_context, frozenset({Point.q, Point.context, Point.gate}))
    ways = (*product(LayerLoop, some), offloaded)
    (expected, expected_grads), *others = (value_and_grads(*way) for way in ways)
    for value, grads in others:
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
        for name, grad in named(grads).items():
            expected_grad = named(expected_grads)[name]
            atol = 1e-5 * np.abs(expected_grad).max()
            np.testing.assert_allclose(grad, expected_grad, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("layer_loop", LayerLoop)
def test_only_full_remat_recomputes(config, lively, layer_loop):
    cfg = config()
    tokens_BT = tokens_of(cfg, np.random.default_rng())

    def jaxpr_of_gradient(remat):
        graph, params = lively(cfg, seed=0, layer_loop=layer_loop, remat=remat)
        return str(jax.make_jaxpr(jax.grad(lambda p: nnx.merge(graph, p)(tokens_BT).sum()))(params))

    none, full = jaxpr_of_gradient(Remat.none), jaxpr_of_gradient(Remat.full)
    assert "checkpoint" not in none and "remat" not in none
    assert "checkpoint" in full or "remat" in full
    # Two norms a block, two on its queries and keys, and the final one: each takes its root once.
    layers_in_jaxpr = 2 if layer_loop is LayerLoop.scan else cfg.n_layers
    assert none.count(" rsqrt ") == 4 * layers_in_jaxpr + 1 < full.count(" rsqrt ")


def test_a_token_reaches_as_far_as_the_windows_carry_it(config, lively):
    rng = np.random.default_rng()
    cfg = config(window=3, window_pattern=[Attention.sliding])
    model = jax.jit(nnx.merge(*lively(cfg, seed=rng.integers(2**32))))
    tokens_BT = tokens_of(cfg, rng, batch=1, positions=30)
    at, reach = 7, cfg.n_layers * (cfg.window - 1)
    changed_BT = tokens_BT.at[0, at].set((tokens_BT[0, at] + 1) % cfg.vocab_size)
    difference_T = np.abs(np.asarray(model(tokens_BT) - model(changed_BT))).max((0, 2))
    assert (difference_T[:at] == 0).all(), "a token changed the past"
    assert (difference_T[at : at + reach + 1] > 0).all()
    assert (difference_T[at + reach + 1 :] == 0).all(), "a token reached beyond every window"


def test_a_full_layer_reaches_the_end(config, lively):
    rng = np.random.default_rng()
    cfg = config(window=3, window_pattern=[Attention.sliding] * 3 + [Attention.full])
    model = jax.jit(nnx.merge(*lively(cfg, seed=rng.integers(2**32))))
    tokens_BT = tokens_of(cfg, rng, batch=1, positions=30)
    changed_BT = tokens_BT.at[0, 7].set((tokens_BT[0, 7] + 1) % cfg.vocab_size)
    difference_T = np.abs(np.asarray(model(tokens_BT) - model(changed_BT))).max((0, 2))
    assert (difference_T[:7] == 0).all() and (difference_T[7:] > 0).all()


def test_bf16_compute_stays_near_fp32(config, build, initial):
    rng = np.random.default_rng()
    graph, _ = nnx.split(nnx.eval_shape(lambda: build(config())))
    params = initial(rng.integers(2**31))
    bf16_graph, bf16_params = nnx.split(nnx.eval_shape(lambda: build(config(compute_dtype=DType.bfloat16))))
    assert {leaf.dtype for leaf in jax.tree.leaves(bf16_params)} == {jnp.dtype("float32")}
    params["head"]["weight"][...] *= 10  # logits of order one
    tokens_BT = tokens_of(config(), rng)
    expected = jax.nn.log_softmax(jax.jit(nnx.merge(graph, params))(tokens_BT))
    logits = jax.jit(nnx.merge(bf16_graph, params))(tokens_BT)
    assert logits.dtype == jnp.float32
    divergence_BT = (jnp.exp(expected) * (expected - jax.nn.log_softmax(logits))).sum(-1)
    assert 0 < divergence_BT.max() < 4e-3  # four times the largest of 30 seeds


def test_parameters_follow_the_seed(initial):
    first, again, other = (named(initial(seed)) for seed in (3, 3, 4))
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        assert name.endswith("norm.weight") == bool((value == other[name]).all()), name


def test_layers_are_drawn_differently(initial):
    params = named(initial(5))
    draws = [layer for name in ("gate", "up") for i in (0, 1) for layer in params[f"blocks.{i}.mlp.{name}.weight"]]
    assert len({np.asarray(draw).tobytes() for draw in draws}) == 8


def test_layers_start_from_the_same_values_under_any_pattern(config, monkeypatch):
    def one_draw(self, std, shape, axes):
        return nnx.Param(jnp.broadcast_to(jax.random.uniform(self.rngs.params()), shape), axes=axes)

    monkeypatch.setattr(init.Init, "_truncated", one_draw)  # compiling the real one for every shape takes seconds

    def gates(pattern):
        blocks = stacked_blocks(config(window_pattern=pattern), nnx.Rngs(0), xla.attention)
        return [blocks[layer % len(blocks)].mlp.gate.weight[...][layer // len(blocks), 0, 0] for layer in range(4)]

    one, two, four = (gates([Attention.full] * period) for period in (1, 2, 4))
    assert len(set(map(float, one))) == 4
    assert one == two == four
