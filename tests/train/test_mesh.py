"""Sharded equals unsharded: updates, scores and checkpoints on every kind of mesh, against one device and float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp

from olmo_hydra.config.root import Config
from olmo_hydra.eval.scoring import Scorer
from olmo_hydra.hardware.memory import state_bytes_per_device
from olmo_hydra.hardware.sharding import token_sharding
from olmo_hydra.model.params import named
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.step import Inputs
from tests.model.reference import forward
from tests.train.meshes import (
    MODEL,
    ONE,
    B,
    Overrides,
    Shape,
    T,
    assert_agree,
    batches,
    compiled,
    initial,
    two_updates,
    updated,
)
from tests.train.tiny import NOTHING_READ, saving

# One axis each, and all of them; the rest of the factorisations of 8 in test_zoo.py.
MESHES = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 1, 2, 2), (1, 1, 4, 1)]
MORE_MESHES = [(1, 1, 1, 4), (1, 1, 1, 8), (1, 1, 8, 1), (1, 2, 1, 2), (1, 2, 1, 4), (1, 8, 1, 1), (2, 2, 1, 1)]


def model_for(shape: Shape) -> Overrides:
    """As many key-value heads as `tensor` needs."""
    return (*MODEL, "model.n_kv_heads=8") if shape[3] == 8 else MODEL


@pytest.mark.parametrize(
    "shape", [*MESHES, *(pytest.param(shape, marks=pytest.mark.slow) for shape in MORE_MESHES)], ids=str
)
def test_two_updates_equal_those_of_one_device(shape: Shape) -> None:
    assert_agree(two_updates(shape, model_for(shape)), two_updates(ONE, model_for(shape)))


def test_micro_batches_are_divided_by_instances() -> None:
    assert_agree(two_updates((2, 1, 2, 2), micro_batches=2), two_updates(ONE))


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (2, 1, 2, 2), (1, 1, 1, 8)], ids=str)
def test_the_state_lies_divided_and_preflight_knows_its_size(shape: Shape) -> None:
    config, made, _ = compiled(shape, model_for(shape))
    state, _ = two_updates(shape, model_for(shape))
    for name, leaf in named(state.params).items():
        shards = 1 if "norm" in name else shape[1] * shape[3]
        assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // shards}, name
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == made.shardings
    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]  # the others count updates
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in arrays)
    assert held == state_bytes_per_device(config)


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (1, 1, 8, 1), (2, 1, 2, 2), (1, 2, 1, 4), (1, 1, 1, 8)], ids=str)
def test_no_device_computes_what_another_does(shape: Shape) -> None:
    """By the compiler's count, an eighth of the operations of one device, but for norms and sums."""
    one, eight = (compiled(on, model_for(shape)).update.cost_analysis()["flops"] for on in (ONE, shape))
    assert eight < 1.2 * one / 8


def objective(config: Config, params: dict[str, np.ndarray], batch: Inputs) -> tuple[float, float]:
    """Cross-entropy and weighted z-loss in float64, a row at a time."""
    nats, squares = 0.0, 0.0
    for tokens_T, labels_T in zip(batch.tokens, batch.labels, strict=True):
        logits_TV = forward(config.model, params, tokens_T)
        partition_T, at = logsumexp(logits_TV, axis=1), np.flatnonzero(labels_T >= 0)
        nats += (partition_T[at] - logits_TV[at, labels_T[at]]).sum()
        squares += np.square(partition_T[at]).sum()
    targets = (batch.labels >= 0).sum()
    return nats / targets, config.train.z_loss * squares / targets


@pytest.mark.parametrize("shape", [ONE, (1, 1, 4, 1), (1, 2, 1, 4)], ids=str)
def test_loss_and_gradient_norm_are_those_of_float64(shape: Shape) -> None:
    """The slope of the reference along the gradient that the first moment holds is the gradient's norm.

    One document in each row: the reference knows no others.
    """
    on = compiled(shape)
    batch = batches()[0]._replace(segments=np.zeros((B, T), np.int32))
    state, metrics = updated(on, jax.device_put(initial(), on.program.shardings), batch)
    params = {name: np.float64(leaf) for name, leaf in named(initial().params).items()}
    mu = optax.tree.get(state.opt_state, "mu")
    grads = {name: np.float64(leaf) / (1 - on.config.optim.b1) for name, leaf in named(mu).items()}
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))

    loss, z_loss = objective(on.config, params, batch)
    moved = [
        sum(objective(on.config, {name: params[name] + h / norm * grads[name] for name in params}, batch))
        for h in (1e-4, -1e-4)
    ]
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["z_loss"], z_loss, rtol=1e-6)
    np.testing.assert_allclose(norm, metrics["grad_norm"], rtol=1e-6)
    np.testing.assert_allclose((moved[0] - moved[1]) / 2e-4, norm, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (1, 1, 1, 4)], ids=str)
def test_scores_are_those_of_one_device(shape: Shape) -> None:
    tokens_BT, labels_BT, _ = batches()[0]
    nats = []
    for on in (compiled(ONE).program, compiled(shape).program):
        score = Scorer(on.graphdef, partial(jax.device_put, device=token_sharding(on.mesh)))
        params = jax.device_put(initial().params, on.shardings.params)
        nats.append(score(params, tokens_BT, labels_BT))
    np.testing.assert_allclose(nats[1], nats[0], rtol=2e-6)


def test_a_checkpoint_of_one_mesh_continues_on_another(tmp_path) -> None:
    """The state is the same bit for bit, and so is the next update but for rounding."""
    state, _ = two_updates((2, 1, 2, 2))
    there, here = compiled((2, 1, 2, 2)), compiled((1, 1, 4, 1))
    checkpoints = Checkpoints(tmp_path / "checkpoints", saving())
    record, words_W = NOTHING_READ
    checkpoints.save(2, state, {"run": "nano"}, record, jnp.asarray(words_W))
    checkpoints.wait(lambda kind, **fields: None)
    restored = checkpoints.restore(2, here.program.abstract, here.program.shardings, {"run": "nano"})
    checkpoints.close()
    assert jax.tree.map(lambda leaf: leaf.sharding, restored) == here.program.shardings
    for left, right in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(left, right)
    copied = jax.device_put(jax.device_get(state), there.program.shardings)  # the update takes what it is given
    follow = [updated(on, start, batches()[0]) for on, start in ((here, restored), (there, copied))]
    assert_agree(*((after, [metrics]) for after, metrics in follow))
