"""The update: a pure function of state and batch, compiled once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from olmo_hydra.data.loader import IGNORED
from olmo_hydra.optim import metrics as optimizer_metrics
from olmo_hydra.train.state import Program, State

Array = jax.Array | np.ndarray
Metrics = dict[str, Any]  # scalars; None where nothing was computed


class Inputs(NamedTuple):
    """A global batch on the devices, as [A, B, T]: A micro-batches. `segments` is None where nothing is masked."""

    tokens: Array
    labels: Array
    segments: Array | None


Step = Callable[[State, Inputs, jax.Array], tuple[State, Metrics]]


def passed_over(lr: Array) -> Metrics:
    """The metrics of an update of `train.skip_batches`: nothing was computed."""
    nothing = dict.fromkeys(("loss", "z_loss", "grad_norm", "param_norm"))
    return {**nothing, "lr": lr, "batch_skipped": np.int32(1)}


def make_step(program: Program) -> Step:
    """The update of a run: `step(state, inputs, lr) -> (state, metrics)`.

    A is the number of micro-batches whose gradients are added up, B the instances of one, over all devices. Losses are
    divided by the targets of the whole global batch, so that the update depends on neither A nor the devices, whatever
    is masked. `loss` is cross-entropy alone, in nats a target; `z_loss` is already weighted; `grad_norm` is taken
    before clipping; `param_norm` after the update.
    """
    z_weight = program.config.train.z_loss

    def loss_sum(params: nnx.State, micro_batch: Inputs, targets: jax.Array) -> Any:
        return nnx.merge(program.graphdef, params).loss(*micro_batch, z_weight=z_weight, divisor=targets)

    def step(state: State, inputs: Inputs, lr: jax.Array) -> tuple[State, Metrics]:
        targets = jnp.maximum((inputs.labels != IGNORED).sum(), 1).astype(jnp.float32)
        gradient = jax.grad(loss_sum, has_aux=True)

        def accumulate(total: Any, micro_batch: Inputs) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, gradient(state.params, micro_batch, targets)), None

        if inputs.tokens.shape[0] == 1:
            only = jax.tree.map(lambda array_ABT: array_ABT[0], inputs)
            grads, (loss, z_loss) = gradient(state.params, only, targets)
        else:
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), (state.params, (targets, targets)))
            (grads, (loss, z_loss)), _ = jax.lax.scan(accumulate, zeros, inputs)

        grad_norm = optax.tree.norm(grads)
        updates, opt_state = program.optimizer.update(
            grads, state.opt_state, state.params, lr=lr, loss=loss, grad_norm=grad_norm
        )
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": loss,
            "z_loss": z_loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "param_norm": optax.tree.norm(params),
            **optimizer_metrics(opt_state),
        }
        return State(params, opt_state), metrics

    return step
