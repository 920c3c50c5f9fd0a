"""Updates compiled for any mesh of simulated devices, and the comparison of two of them."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.config.mesh import MESH_AXES
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.sharding import token_sharding
from olmo_hydra.train.lowering import abstract_state, lower
from olmo_hydra.train.state import Program, State
from olmo_hydra.train.step import Inputs, make_step
from tests.train.tiny import program

Shape = tuple[int, int, int, int]  # along MESH_AXES

Overrides = tuple[str, ...]

# Four groups of two query heads, a sliding layer and a full one, documents whose positions start anew. A larger eps,
# since Adam's first updates hardly depend on the gradient and would then hide it, or make much of its noise.
MODEL = (
    *("model.head_dim=4", "model.n_heads=8", "model.n_kv_heads=4"),
    *("model.n_layers=2", "model.window_pattern=[sliding,full]"),
    *("data.document_mask=true", "data.document_positions=restarted", "optim=adamw", "optim.eps=1e-2"),
    *("optim.clip_norm=null", "hardware.micro_batch=null"),
)
ONE = (1, 1, 1, 1)
B, T = 8, 32


class Compiled(NamedTuple):
    config: Config
    program: Program
    update: jax.stages.Compiled


@cache
def compiled(shape: Shape, model: Overrides = MODEL, micro_batches: int = 1) -> Compiled:
    """The update as the loop compiles it: state donated, its layout pinned."""
    mesh = (f"hardware.mesh.{axis}={size}" for axis, size in zip(MESH_AXES, shape, strict=True))
    devices = f"hardware.devices={np.prod(shape)}"
    at_once = f"hardware.micro_batch={B // (shape[0] * shape[1] * micro_batches)}"
    config, made = program(*model, devices, *mesh, at_once)
    lowered = lower(config, made.mesh, make_step(made), abstract_state(made))
    quick = {"xla_backend_optimization_level": "0"}
    return Compiled(config, made, lowered.compile(compiler_options=quick))


@cache
def initial(model: Overrides = MODEL) -> State:
    """Drawn on one device, as numpy: layouts round the last bit of initial values apart."""
    return jax.device_get(compiled(ONE, model).program.init())


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
        jax.tree.map(lambda x_BT: x_BT.reshape(rows), batch), token_sharding(on.program.mesh, leading=1)
    )
    after, metrics = on.update(state, placed, jnp.float32(1e-2))
    return after, jax.device_get(metrics)


@cache
def two_updates(shape: Shape, model: Overrides = MODEL, micro_batches: int = 1) -> tuple[State, list[dict[str, float]]]:
    on = compiled(shape, model, micro_batches)
    state, metrics = jax.device_put(initial(model), on.program.shardings), []
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
