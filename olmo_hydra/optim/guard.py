"""`build`: the optimizer of a config, which never applies an update that is not finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from olmo_hydra.config.optim import OptimConfig
from olmo_hydra.optim.base import Rule, metrics, rule, transformation

Tree = Any


class GuardedState(NamedTuple):
    """The optimizer's state, its rule's, and what became of the last update. All of it is in the checkpoint."""

    inner: Tree
    rule: Tree
    skipped: jax.Array
    skipped_total: jax.Array
    consecutive_skips: jax.Array


def build(cfg: OptimConfig, decay_mask: Tree) -> optax.GradientTransformationExtraArgs:
    """The optimizer that a config describes, guarded.

    Args:
      cfg: A checked schema of the `optim` group.
      decay_mask: Booleans in the structure of the parameters: whether weight decay applies (`decay_mask`).

    Returns:
      `update(grads, state, params, *, lr, loss, grad_norm) -> (updates, state)`, for `optax.apply_updates`. All three
      are fp32 scalars: `lr` the rate of this very update, so that the logged rate is the applied one and a schedule
      never recompiles; `loss` the cross-entropy of the batch; `grad_norm` the global norm of `grads` before clipping.
    """
    return guarded(transformation(cfg, decay_mask), rule(cfg))


def guarded(inner: optax.GradientTransformationExtraArgs, skips: Rule) -> optax.GradientTransformationExtraArgs:
    """Skips updates whose loss or gradient norm is not finite, and those that the rule does not accept.

    A skipped update leaves parameters and the inner state (moments, step count) as they were, to the bit, and is
    counted. A gradient that is not finite makes its norm so. The learning rate is the caller's, so that a skipped
    update does not hold up the schedule.
    """

    def init(params: Tree) -> GuardedState:
        # An array each: donated buffers must not be shared.
        return GuardedState(inner.init(params), skips.init(), *(jnp.zeros((), jnp.int32) for _ in range(3)))

    def update(
        grads: Tree, state: GuardedState, params: Tree, *, lr: jax.Array, loss: jax.Array, grad_norm: jax.Array
    ) -> tuple[Tree, GuardedState]:
        updates, inner_state = inner.update(grads, state.inner, params, lr=lr, loss=loss, grad_norm=grad_norm)
        accepted, rule_state = skips.judge(state.rule, loss, grad_norm)
        accepted &= jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        skipped = 1 - accepted.astype(jnp.int32)
        # Only the negative zero leaves every number as it is: -0 + 0 is 0.
        updates = jax.tree.map(lambda u: jnp.where(accepted, u, jnp.full_like(u, -0.0)), updates)
        inner_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), inner_state, state.inner)
        return updates, GuardedState(
            inner=inner_state,
            rule=rule_state,
            skipped=skipped,
            skipped_total=state.skipped_total + skipped,
            consecutive_skips=skipped * (state.consecutive_skips + 1),
        )

    return optax.GradientTransformationExtraArgs(init, update)


@metrics.register
def guarded_metrics(state: GuardedState) -> dict[str, jax.Array]:
    """Whether the last update was skipped, how many were and how many in a row; what rule and optimizer have to say."""
    counts = {name: getattr(state, name) for name in ("skipped", "skipped_total", "consecutive_skips")}
    return counts | metrics(state.rule) | metrics(state.inner)
