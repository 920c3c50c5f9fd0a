import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from olmo_hydra import optim
from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import RequestError

NAMES = {"embedding": {"weight": "embedding.weight"}, "blocks": [{"gate": "blocks.0.gate.weight"}]}
SHAPES = {"embedding": {"weight": (5, 3)}, "blocks": [{"gate": (3, 4)}]}


def is_shape(x):
    return isinstance(x, tuple)


def draw(rng, scale=1.0):
    return jax.tree.map(lambda shape: (scale * rng.normal(size=shape)).astype(np.float32), SHAPES, is_leaf=is_shape)


def norm(tree):
    return np.float32(np.sqrt(sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in jax.tree.leaves(tree))))


def run(cfg, params, gradients, rates):
    """Parameters and state after the given updates."""
    optimizer = optim.build(cfg, optim.decay_mask(cfg, NAMES))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for grads, lr in zip(gradients, rates, strict=True):
        updates, state = update(
            grads, state, params, lr=jnp.float32(lr), loss=jnp.float32(1.0), grad_norm=jnp.asarray(norm(grads))
        )
        params = optax.apply_updates(params, updates)
    return params, state


def torch_adamw(cfg, params, gradients, rates):
    """`clip_grad_norm_` and AdamW as PyTorch documents them, in float64, leaf by leaf."""
    leaves, treedef = jax.tree.flatten(jax.tree.map(lambda p: np.asarray(p, np.float64), params))
    decays = [not name.startswith("embedding") for name in jax.tree.leaves(NAMES)]
    m, v = [0 * p for p in leaves], [0 * p for p in leaves]
    for t, (grads, lr) in enumerate(zip(gradients, rates, strict=True), start=1):
        scale = min(1.0, cfg.clip_norm / (norm(grads) + 1e-6)) if cfg.clip_norm else 1.0
        for i, g in enumerate(scale * np.asarray(g, np.float64) for g in jax.tree.leaves(grads)):
            if decays[i]:
                leaves[i] = leaves[i] * (1 - lr * cfg.weight_decay)
            m[i] = cfg.b1 * m[i] + (1 - cfg.b1) * g
            v[i] = cfg.b2 * v[i] + (1 - cfg.b2) * g**2
            denominator = np.sqrt(v[i]) / np.sqrt(1 - cfg.b2**t) + cfg.eps
            leaves[i] = leaves[i] - lr / (1 - cfg.b1**t) * m[i] / denominator
    return treedef.unflatten(leaves)


def test_first_update_known_answer(adamw):
    """Adam's first step is the gradient's sign: p - lr * (sign(g) + decay * p)."""
    cfg = adamw(weight_decay=0.5, clip_norm=None)
    params = jax.tree.map(lambda shape: jnp.full(shape, 2.0), SHAPES, is_leaf=is_shape)
    grads = jax.tree.map(lambda p: -3 * p, params)
    (new, _) = run(cfg, params, [grads], [0.01])
    np.testing.assert_allclose(new["embedding"]["weight"], 2.0 + 0.01, rtol=1e-6)
    np.testing.assert_allclose(new["blocks"][0]["gate"], 2.0 - 0.01 * (-1 + 0.5 * 2), rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [None, 0.5, 1e6])
def test_equals_torch_adamw_in_float64(adamw, clip_norm):
    rng = np.random.default_rng()
    cfg = adamw(clip_norm=clip_norm)
    params, gradients = draw(rng), [draw(rng, scale) for scale in 10 ** rng.uniform(-3, 1, 20)]
    rates = rng.uniform(1e-3, 1e-2, 20)
    new, _ = run(cfg, params, gradients, rates)
    expected = torch_adamw(cfg, params, gradients, rates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), new, expected)


def test_equals_optax_adamw(adamw):
    rng = np.random.default_rng()
    cfg = adamw(clip_norm=None)
    params, gradients = draw(rng), [draw(rng) for _ in range(10)]
    new, _ = run(cfg, params, gradients, [0.01] * 10)
    peer = optax.adamw(0.01, cfg.b1, cfg.b2, cfg.eps, weight_decay=0.1, mask=optim.decay_mask(cfg, NAMES))
    state, expected = peer.init(params), params
    for grads in gradients:
        updates, state = peer.update(grads, state, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), new, expected)


@pytest.mark.parametrize("mu_dtype", DType)
@pytest.mark.parametrize("nu_dtype", DType)
def test_moments_have_their_own_dtypes(adamw, mu_dtype, nu_dtype):
    """Whatever the parameters' dtype; stored values are the fp32 ones rounded, not ones accumulated coarsely."""
    rng = np.random.default_rng()
    cfg = adamw(mu_dtype=mu_dtype, nu_dtype=nu_dtype, clip_norm=None)
    grads = draw(rng)
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), draw(rng))
    new, guarded = run(cfg, params, [grads], [0.01])
    adam = guarded.inner[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("bfloat16")}
    for moment, dtype, expected in (
        (adam.mu, mu_dtype, lambda g: np.float32(0.1) * g),
        (adam.nu, nu_dtype, lambda g: np.float32(0.05) * g**2),
    ):
        for leaf, g in zip(jax.tree.leaves(moment), jax.tree.leaves(grads), strict=True):
            assert leaf.dtype == dtype.value
            precision = 2.0**-8 if dtype is DType.bfloat16 else 1e-6
            np.testing.assert_allclose(leaf.astype(jnp.float32), expected(g), rtol=precision)


def test_bf16_moments_stay_near_fp32(adamw):
    rng = np.random.default_rng()
    params, gradients = draw(rng), [draw(rng) for _ in range(50)]
    coarse, _ = run(adamw(mu_dtype=DType.bfloat16, nu_dtype=DType.bfloat16), params, gradients, [1e-2] * 50)
    fine, _ = run(adamw(), params, gradients, [1e-2] * 50)
    moved = max(np.abs(new - old).max() for new, old in zip(*map(jax.tree.leaves, (fine, params)), strict=True))
    apart = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (fine, coarse)), strict=True))
    assert 0 < apart < 0.05 * moved


def test_decay_mask_spares_what_matches(adamw):
    assert jax.tree.leaves(optim.decay_mask(adamw(), NAMES)) == [True, False]  # blocks, embedding
    assert jax.tree.leaves(optim.decay_mask(adamw(no_decay=[]), NAMES)) == [True, True]
    assert jax.tree.leaves(optim.decay_mask(adamw(no_decay=["*.weight"]), NAMES)) == [False, False]


def test_pattern_without_match_is_refused(adamw):
    with pytest.raises(RequestError) as refusal:
        optim.decay_mask(adamw(no_decay=["embedding*", "embeding.weight"]), NAMES)
    assert refusal.value.key == "optim.no_decay" and refusal.value.value == "embeding.weight"
    assert refusal.value.instead == "optim.no_decay=['embedding.weight']"


def test_unregistered_schema_is_named():
    with pytest.raises(TypeError, match="no optimizer is registered for dict"):
        optim.build({}, None)
