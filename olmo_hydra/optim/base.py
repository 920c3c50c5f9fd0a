"""What every optimizer offers: `build` from its config, and `metrics` of its state."""

from functools import singledispatch
from typing import Any

import jax
import optax

from olmo_hydra.config.optim import OptimConfig

Tree = Any


@singledispatch
def build(cfg: OptimConfig, decay_mask: Tree) -> optax.GradientTransformationExtraArgs:
    """The optimizer that a config describes; one registered function for each schema.

    Args:
      cfg: A checked schema of the `optim` group.
      decay_mask: Booleans in the structure of the parameters: whether weight decay applies (`decay_mask`).

    Returns:
      `update(grads, state, params, *, lr, loss, grad_norm) -> (updates, state)`, for `optax.apply_updates`. All three
      are fp32 scalars: `lr` the rate of this very update, so that the logged rate is the applied one and a schedule
      never recompiles; `loss` the cross-entropy of the batch; `grad_norm` the global norm of `grads` before clipping.
    """
    raise TypeError(f"no optimizer is registered for {type(cfg).__name__}")


@singledispatch
def metrics(state: Tree) -> dict[str, jax.Array]:
    """Scalars an optimizer's state has to say about the last update; nothing, unless its state registers more."""
    return {}


@metrics.register(tuple)
def chained_metrics(states: tuple) -> dict[str, jax.Array]:
    """What the members of a chain have to say."""
    return {name: value for state in states for name, value in metrics(state).items()}
