"""The head's cross-entropy and z-loss against float64, value and gradient, in chunks and on meshes."""

from itertools import product
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from scipy.special import log_softmax, logsumexp, softmax

from olmo_hydra.config.hardware import MESH_AXES
from olmo_hydra.model.head_loss import HeadLoss

B, T, D, V, VOCAB, IGNORED = 4, 10, 8, 16, 13, -100
Z_WEIGHT, DIVISOR = 0.1, np.float32(7)


class Problem(NamedTuple):
    x_BTD: np.ndarray
    weight_DV: np.ndarray
    labels_BT: np.ndarray


@pytest.fixture
def problem() -> Problem:
    """Logits far from uniform, a third of the labels masked, and a vocabulary that is padded."""
    rng = np.random.default_rng()
    labels_BT = rng.integers(0, VOCAB, (B, T))
    labels_BT[rng.random((B, T)) < 0.3] = IGNORED
    x_BTD, weight_DV = (rng.normal(size=shape).astype(np.float32) for shape in ((B, T, D), (D, V)))
    return Problem(x_BTD, weight_DV, labels_BT.astype(np.int32))


def expected(problem: Problem) -> tuple[np.ndarray, np.ndarray, Problem]:
    """In float64: nats_BT, partition_BT, and the gradient of the weighted sum of both losses."""
    x_BTD, weight_DV = np.float64(problem.x_BTD), np.float64(problem.weight_DV)
    counted_BT = problem.labels_BT != IGNORED
    logits_BTV = x_BTD @ weight_DV[:, :VOCAB]
    labels_BT1 = problem.labels_BT.clip(0)[..., None]
    nats_BT = counted_BT * -np.take_along_axis(log_softmax(logits_BTV, axis=-1), labels_BT1, axis=-1)[..., 0]
    partition_BT = counted_BT * logsumexp(logits_BTV, axis=-1)
    slope_BTV = (1 + 2 * Z_WEIGHT * partition_BT[..., None]) * softmax(logits_BTV, axis=-1)
    slope_BTV = counted_BT[..., None] * (slope_BTV - np.eye(VOCAB)[labels_BT1[..., 0]]) / DIVISOR
    dweight_DV = np.zeros((D, V))  # ids of the padding have none
    dweight_DV[:, :VOCAB] = np.einsum("BTD,BTV->DV", x_BTD, slope_BTV)
    return nats_BT, partition_BT, Problem(slope_BTV @ weight_DV[:, :VOCAB].T, dweight_DV, problem.labels_BT)


def value_and_gradient(head: HeadLoss, problem: Problem):
    def loss(x_BTD, weight_DV):
        return head.loss(x_BTD, weight_DV, problem.labels_BT, z_weight=Z_WEIGHT, divisor=DIVISOR)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(problem.x_BTD, problem.weight_DV)


def check(head: HeadLoss, problem: Problem) -> None:
    nats_BT, partition_BT, wanted = expected(problem)
    (total, (loss, z_loss)), (dx_BTD, dweight_DV) = value_and_gradient(head, problem)
    np.testing.assert_allclose(loss, nats_BT.sum() / DIVISOR, rtol=2e-6)
    np.testing.assert_allclose(z_loss, Z_WEIGHT * np.square(partition_BT).sum() / DIVISOR, rtol=2e-6)
    np.testing.assert_allclose(total, loss + z_loss, rtol=3e-7)
    np.testing.assert_allclose(dx_BTD, wanted.x_BTD, atol=1e-6 * np.abs(wanted.x_BTD).max(), rtol=1e-5)
    np.testing.assert_allclose(dweight_DV, wanted.weight_DV, atol=1e-6 * np.abs(wanted.weight_DV).max(), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(head.nats)(*problem), nats_BT, rtol=1e-5, atol=1e-6)
    alone = head.loss(*problem, z_weight=Z_WEIGHT, divisor=DIVISOR)
    np.testing.assert_allclose(alone[0], total, rtol=1e-6, err_msg="without a gradient")


@pytest.mark.parametrize("chunk", [None, 1, 7, 40, 1000])
def test_losses_and_gradients_equal_float64(problem: Problem, chunk: int | None) -> None:
    check(HeadLoss(VOCAB, chunk), problem)


@pytest.mark.parametrize("shape", [s for s in product((1, 2, 4), repeat=3) if 1 < np.prod(s) <= 8], ids=str)
def test_and_on_every_mesh(problem: Problem, shape: tuple[int, int, int]) -> None:
    mesh = Mesh(np.asarray(jax.devices()[: np.prod(shape)]).reshape(shape), MESH_AXES)
    check(HeadLoss(VOCAB, 3, mesh), problem)


def test_what_does_not_divide_is_computed_everywhere(problem: Problem) -> None:
    """Three instances over four devices, and a width of seven over two."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), MESH_AXES)
    odd = Problem(problem.x_BTD[:3, :, :7].copy(), problem.weight_DV[:7].copy(), problem.labels_BT[:3])
    by_one, by_eight = (value_and_gradient(HeadLoss(VOCAB, 3, on), odd) for on in (None, mesh))
    for one, eight in zip(jax.tree.leaves(by_one), jax.tree.leaves(by_eight), strict=True):
        np.testing.assert_allclose(eight, one, rtol=1e-5, atol=1e-6)
    check(HeadLoss(VOCAB, 3, mesh), problem._replace(x_BTD=problem.x_BTD[:3], labels_BT=problem.labels_BT[:3]))


def test_nothing_counted_is_zero_and_finite(problem: Problem) -> None:
    nothing = problem._replace(labels_BT=np.full((B, T), IGNORED, np.int32))
    for leaf in jax.tree.leaves(value_and_gradient(HeadLoss(VOCAB, 7), nothing)):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_activations_of_bf16_keep_losses_and_the_weights_gradient_in_fp32(problem: Problem) -> None:
    low = problem._replace(x_BTD=jnp.asarray(problem.x_BTD, jnp.bfloat16))
    rounded = problem._replace(
        x_BTD=np.float32(low.x_BTD), weight_DV=np.float32(jnp.asarray(problem.weight_DV, jnp.bfloat16))
    )
    nats_BT, _, wanted = expected(rounded)
    (_, (loss, _)), (dx_BTD, dweight_DV) = value_and_gradient(HeadLoss(VOCAB, 7), low)
    assert (loss.dtype, dx_BTD.dtype, dweight_DV.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(loss, nats_BT.sum() / DIVISOR, rtol=1e-5)  # of products that fp32 holds exactly
    for found, right in ((dx_BTD, wanted.x_BTD), (dweight_DV, wanted.weight_DV)):
        np.testing.assert_allclose(np.float32(found), right, rtol=0, atol=2**-7 * np.abs(right).max())


def test_logits_of_all_tokens_never_exist(problem: Problem) -> None:
    """Nor anything else of their size: every array of the gradient's program is looked at."""
    head = HeadLoss(VOCAB, 5)
    program = jax.make_jaxpr(lambda *arrays: value_and_gradient(head, Problem(*arrays, problem.labels_BT)))
    sizes = [size for shape in shapes(program(*problem[:2]).jaxpr) if V in shape for size in [np.prod(shape)]]
    assert 5 * V in sizes and max(sizes) < B * T * V


def shapes(jaxpr) -> list[tuple[int, ...]]:
    found = []
    for equation in jaxpr.eqns:
        found += [var.aval.shape for var in equation.outvars]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += shapes(inner)
    return found
