"""Scalings by numbers that the training step already has: the norm of the gradients and the learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

Tree = Any


def clip_by_grad_norm(clip_norm: float) -> optax.GradientTransformationExtraArgs:
    """Scales gradients by `min(1, clip_norm / (grad_norm + 1e-6))`.

    The 1e-6 is `torch.nn.utils.clip_grad_norm_`'s, by which Olmo 3 was trained. `grad_norm` is the extra argument, so
    that the norm is computed once and the logged one is the one clipped by.
    """

    def update(grads: Tree, state: Tree, params: Tree, *, grad_norm: jax.Array, **_: jax.Array) -> tuple[Tree, Tree]:
        scale = jnp.minimum(1.0, clip_norm / (grad_norm + 1e-6))
        return jax.tree.map(lambda g: g * scale, grads), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def descend() -> optax.GradientTransformationExtraArgs:
    """Multiplies by `-lr`, the extra argument: from a direction of ascent to the update."""

    def update(updates: Tree, state: Tree, params: Tree, *, lr: jax.Array, **_: jax.Array) -> tuple[Tree, Tree]:
        return jax.tree.map(lambda u: -lr * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
