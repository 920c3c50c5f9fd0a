"""Sharded equals unsharded: updates, scores and checkpoints on every kind of mesh, against one device and float64."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp

from olmo_hydra.config.root import Config
from olmo_hydra.eval.scoring import Scorer
from olmo_hydra.hardware.memory import state_bytes_per_device
from olmo_hydra.hardware.sharding import batch_sharding
from olmo_hydra.model.params import named
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.state import Program, State
from olmo_hydra.train.step import Inputs, make_step
from tests.model.reference import forward
from tests.train.tiny import NOTHING_READ, program, saving

Shape = tuple[int, int, int]

# Four groups of two query heads, a sliding layer and a full one, documents whose positions start anew. A larger eps,
# since Adam's first updates hardly depend on the gradient and would then hide it, or make much of its noise.
MODEL = (
    *("model.head_dim=4", "model.n_heads=8", "model.n_layers=2", "model.window_pattern=[sliding,full]"),
    *("data.document_mask=true", "data.document_positions=restarted", "optim=adamw", "optim.eps=1e-2"),
    *("optim.clip_norm=null", "hardware.micro_batch=null"),
)
ONE = (1, 1, 1)
MESHES = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]
MORE_MESHES = [(1, 1, 4), (1, 1, 8), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 8, 1), (1, 2, 4), (2, 1, 4), (1, 4, 2)]
B, T = 8, 32


class Compiled(NamedTuple):
    config: Config
    program: Program
    update: jax.stages.Compiled


@cache
def compiled(shape: Shape, kv_heads: int = 4, micro_batches: int = 1) -> Compiled:
    """The update as the loop compiles it: state donated, its layout pinned."""
    mesh = (f"hardware.mesh.{axis}={size}" for axis, size in zip(("data", "fsdp", "tensor"), shape, strict=True))
    devices = f"hardware.devices={np.prod(shape)}"
    config, made = program(*MODEL, f"model.n_kv_heads={kv_heads}", devices, *mesh)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        made.abstract,
        made.shardings,
    )
    rows = (micro_batches, B // micro_batches, T)
    array_ABT = jax.ShapeDtypeStruct(rows, jnp.int32, sharding=batch_sharding(made.mesh, leading=1))
    step = jax.jit(make_step(made), donate_argnums=0, out_shardings=(made.shardings, None))
    lowered = step.lower(state, Inputs(array_ABT, array_ABT, array_ABT), jnp.float32(0))
    quick = {"xla_backend_optimization_level": "0"}
    return Compiled(config, made, lowered.compile(compiler_options=quick))


@cache
def initial(kv_heads: int = 4) -> State:
    """Drawn on one device, as numpy: layouts round the last bit of initial values apart."""
    return jax.device_get(compiled(ONE, kv_heads).program.init())


@cache
def batches() -> list[Inputs]:
    """Two random batches, a third of the labels masked unevenly, rows of up to four documents."""
    rng = np.random.default_rng(11)
    tokens = rng.integers(0, 257, (2, B, T)).astype(np.int32)
    labels = np.where(rng.random(tokens.shape) < np.linspace(0, 0.7, B)[:, None], -100, np.roll(tokens, -1, axis=2))
    segments = np.sort(rng.integers(0, 4, tokens.shape), axis=2).astype(np.int32)
    return [Inputs(*arrays) for arrays in zip(tokens, labels.astype(np.int32), segments, strict=True)]


def updated(on: Compiled, state: State, batch: Inputs) -> tuple[State, dict[str, float]]:
    """State and metrics after an update of a batch, [B, T] each."""
    rows = on.update.args_info[0][1].tokens.shape
    placed = jax.device_put(
        jax.tree.map(lambda x_BT: x_BT.reshape(rows), batch), batch_sharding(on.program.mesh, leading=1)
    )
    after, metrics = on.update(state, placed, jnp.float32(1e-2))
    return after, jax.device_get(metrics)


@cache
def two_updates(shape: Shape, kv_heads: int = 4, micro_batches: int = 1) -> tuple[State, list[dict[str, float]]]:
    on = compiled(shape, kv_heads, micro_batches)
    state, metrics = jax.device_put(initial(kv_heads), on.program.shardings), []
    for batch in batches():
        state, found = updated(on, state, batch)
        metrics.append(found)
    return state, metrics


def assert_agree(found: tuple[State, list], wanted: tuple[State, list]) -> None:
    """Metrics to 2e-6 of themselves; parameters and moments to 1e-5 of the largest element of each."""
    for left, right in zip(found[1], wanted[1], strict=True):
        for name in ("loss", "z_loss", "grad_norm", "param_norm"):
            np.testing.assert_allclose(left[name], right[name], rtol=2e-6, err_msg=name)
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get((found[0], wanted[0])))
    half = len(leaves) // 2
    for (path, left), (_, right) in zip(leaves[:half], leaves[half:], strict=True):
        scale = max(np.abs(right).max(initial=0), 1e-12)
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    "shape", [*MESHES, *(pytest.param(shape, marks=pytest.mark.slow) for shape in MORE_MESHES)], ids=str
)
def test_two_updates_equal_those_of_one_device(shape: Shape) -> None:
    kv_heads = 8 if shape[2] == 8 else 4
    assert_agree(two_updates(shape, kv_heads), two_updates(ONE, kv_heads))


def test_micro_batches_are_divided_by_instances() -> None:
    assert_agree(two_updates((2, 1, 2), micro_batches=2), two_updates(ONE))


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2), (1, 1, 8)], ids=str)
def test_the_state_lies_divided_and_preflight_knows_its_size(shape: Shape) -> None:
    kv_heads = 8 if shape[2] == 8 else 4
    config, made, _ = compiled(shape, kv_heads)
    state, _ = two_updates(shape, kv_heads)
    for name, leaf in named(state.params).items():
        shards = 1 if "norm" in name else shape[1] * shape[2]
        assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // shards}, name
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == made.shardings
    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]  # the others count updates
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in arrays)
    assert held == state_bytes_per_device(config)


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)], ids=str)
def test_no_device_computes_what_another_does(shape: Shape) -> None:
    """By the compiler's count, an eighth of the operations of one device, but for norms and sums."""
    kv_heads = 8 if shape[2] == 8 else 4
    one, eight = (compiled(on, kv_heads).update.cost_analysis()["flops"] for on in (ONE, shape))
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


@pytest.mark.parametrize("shape", [ONE, (1, 2, 4)], ids=str)
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


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 1, 4)], ids=str)
def test_scores_are_those_of_one_device(shape: Shape) -> None:
    tokens_BT, labels_BT, _ = batches()[0]
    nats = []
    for on in (compiled(ONE).program, compiled(shape).program):
        score = Scorer(on.graphdef, partial(jax.device_put, device=batch_sharding(on.mesh)))
        params = jax.device_put(initial().params, on.shardings.params)
        nats.append(score(params, tokens_BT, labels_BT))
    np.testing.assert_allclose(nats[1], nats[0], rtol=2e-6)


def test_a_checkpoint_of_one_mesh_continues_on_another(tmp_path) -> None:
    """The state is the same bit for bit, and so is the next update but for rounding."""
    state, _ = two_updates((2, 2, 2))
    there, here = compiled((2, 2, 2)), compiled((1, 1, 4))
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
