"""What an optimizer registers: its transformation, its rule for skipping updates, what its state has to say."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from olmo_hydra.config.optim import OptimConfig

Tree = Any


@singledispatch
def transformation(cfg: OptimConfig, decay_mask: Tree) -> optax.GradientTransformationExtraArgs:
    """What an optimizer makes of gradients; one registered function for each schema. `build` guards it.

    Args and returned `update` are those of `build`. It need not look at what is not finite.
    """
    raise TypeError(f"no optimizer is registered for {type(cfg).__name__}")


class Rule(NamedTuple):
    """Which finite updates are skipped as well. `init()` makes the rule's state.

    `judge(state, loss, grad_norm) -> (accepted, state)` sees every update, those that are not finite too, which are
    skipped whatever it says.
    """

    init: Callable[[], Tree]
    judge: Callable[[Tree, jax.Array, jax.Array], tuple[jax.Array, Tree]]


@singledispatch
def rule(cfg: OptimConfig) -> Rule:
    """The rule of an optimizer: it accepts every finite update, unless its schema registers another."""
    return Rule(init=tuple, judge=lambda state, loss, grad_norm: (jnp.bool_(True), state))


@singledispatch
def metrics(state: Tree) -> dict[str, jax.Array]:
    """Scalars an optimizer's state has to say about the last update; nothing, unless its state registers more."""
    return {}


@metrics.register(tuple)
def chained_metrics(states: tuple) -> dict[str, jax.Array]:
    """What the members of a chain have to say."""
    return {name: value for state in states for name, value in metrics(state).items()}
