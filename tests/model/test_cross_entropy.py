"""Cross-entropy and z-loss against float64, value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from olmo_hydra.model.cross_entropy import cross_entropy

IGNORED = -100


def sums(logits_NV: jax.Array, labels_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    nats_N, partition_N = cross_entropy(logits_NV, labels_N)
    return nats_N.sum(), jnp.square(partition_N).sum()


def test_cross_entropy_and_gradient_equal_float64() -> None:
    rng = np.random.default_rng()
    logits_NV, labels_N = 5 * rng.normal(size=(40, 11)), rng.integers(0, 11, 40)
    labels_N[rng.random(40) < 0.3] = IGNORED
    counted_N = labels_N != IGNORED
    partition_N = logsumexp(logits_NV, axis=-1)

    nats, squares = sums(jnp.asarray(logits_NV, jnp.float32), jnp.asarray(labels_N))
    expected = -log_softmax(logits_NV, axis=-1)[counted_N, labels_N[counted_N]].sum()
    np.testing.assert_allclose(nats, expected, rtol=1e-5)
    np.testing.assert_allclose(squares, (partition_N[counted_N] ** 2).sum(), rtol=1e-5)

    grad_NV = jax.grad(lambda x: sum(w * s for w, s in zip((1.0, 0.1), sums(x, jnp.asarray(labels_N)), strict=True)))(
        jnp.asarray(logits_NV, jnp.float32)
    )
    probability_NV = softmax(logits_NV, axis=-1)
    expected_NV = probability_NV - np.eye(11)[labels_N.clip(0)] + 0.2 * partition_N[:, None] * probability_NV
    np.testing.assert_allclose(grad_NV, expected_NV * counted_N[:, None], atol=2e-5)


def test_nothing_counted_is_zero_and_finite() -> None:
    grad_NV = jax.grad(lambda x: sums(x, jnp.full(3, IGNORED))[0])(jnp.ones((3, 5)))
    np.testing.assert_array_equal(grad_NV, np.zeros((3, 5)))
