"""The update: equal for any accumulation, and what its metrics say. `test_mesh.py` has the meshes."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.special import logsumexp

from tests.train.tiny import program, updated

ONE = ("hardware.devices=1", "optim=adamw")


def assert_same_update(one, other) -> None:
    for name in ("loss", "z_loss", "grad_norm", "param_norm"):
        np.testing.assert_allclose(one[2][name], other[2][name], rtol=2e-5, err_msg=name)
    # Adam divides by the gradient's own size, so compare the first moments, which are linear in it.
    moments = [jax.tree.leaves(after.opt_state) for _, after, _ in (one, other)]
    for left, right in zip(*moments, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulation", [2, 8])
def test_accumulation_is_one_large_batch(batch, accumulation: int) -> None:
    assert_same_update(updated(ONE, batch), updated(ONE, batch, accumulation))


def test_losses_are_divided_by_all_targets(batch) -> None:
    """By hand, from the logits: not a mean of means over rows, z-loss apart and weighted."""
    tokens_BT, labels_BT = batch
    config, made = program(*ONE)
    state, _, metrics = updated(ONE, batch)
    logits_BTV = nnx.merge(made.graphdef, state.params)(tokens_BT)
    counted = labels_BT != -100
    logits_NV, labels_N = np.asarray(logits_BTV, np.float64)[counted], labels_BT[counted]
    partition_N = logsumexp(logits_NV, axis=-1)
    nats_N = partition_N - np.take_along_axis(logits_NV, labels_N[:, None], axis=-1)[:, 0]
    np.testing.assert_allclose(metrics["loss"], nats_N.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["z_loss"], config.train.z_loss * np.square(partition_N).mean(), rtol=1e-5)


def test_norms(batch) -> None:
    _, after, metrics = updated(ONE, batch)
    np.testing.assert_allclose(metrics["param_norm"], optax.tree.norm(after.params), rtol=1e-6)
    assert metrics["grad_norm"] > 0 and metrics["lr"] == np.float32(1e-2)


def test_the_gradient_norm_is_taken_before_clipping(batch) -> None:
    clipped = updated((*ONE, "optim.clip_norm=1e-3"), batch)
    free = updated((*ONE, "optim.clip_norm=null"), batch)
    assert clipped[2]["grad_norm"] == free[2]["grad_norm"] > 1e-3
    mu = [jax.tree.leaves(optax.tree.get(after.opt_state, "mu"))[0] for _, after, _ in (clipped, free)]
    scale = 1e-3 / (float(free[2]["grad_norm"]) + 1e-6)
    np.testing.assert_allclose(mu[0], mu[1] * scale, rtol=1e-5)


def test_init_is_the_same_on_any_layout() -> None:
    """The same draws. XLA compiles the inverse error function of a shard and of the whole apart, and on some processors
    rounds its last bit another way (2.7e-7 measured with jax 0.12.0.1)."""
    one, eight = (program(*layout)[1].init() for layout in (ONE, ("optim=adamw", "hardware.mesh.tensor=2")))
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=0)


def test_moments_have_their_own_dtypes() -> None:
    _, made = program(*ONE, "optim.mu_dtype=bfloat16", "optim.nu_dtype=float32")
    mu, nu = (optax.tree.get(made.abstract.opt_state, moment) for moment in ("mu", "nu"))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(mu)} == {"bfloat16"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(nu)} == {"float32"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(made.abstract.params)} == {"float32"}
