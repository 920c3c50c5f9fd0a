"""AdamW with torch's arithmetic and explicit dtypes of both moments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from olmo_hydra.config.optim import AdamWConfig
from olmo_hydra.optim.base import transformation
from olmo_hydra.optim.decay import add_decay
from olmo_hydra.optim.scale import clip_by_grad_norm, descend

Tree = Any


@transformation.register
def adamw(cfg: AdamWConfig, decay_mask: Tree) -> optax.GradientTransformationExtraArgs:
    """Clipping, Adam, decoupled decay, the rate: `p -= lr * (mu_hat / (sqrt(nu_hat) + eps) + weight_decay * p)`."""
    clip = optax.identity() if cfg.clip_norm is None else clip_by_grad_norm(cfg.clip_norm)
    return optax.chain(clip, scale_by_adam(cfg), add_decay(cfg.weight_decay, decay_mask), descend())


class AdamState(NamedTuple):
    """Number of updates done, and the moments in the structure of the parameters."""

    steps: jax.Array
    mu: Tree
    nu: Tree


def scale_by_adam(cfg: AdamWConfig) -> optax.GradientTransformationExtraArgs:
    """Bias-corrected `mu / (sqrt(nu) + eps)` (arXiv 1412.6980), with moments accumulated in fp32 and then cast.

    Written here because `optax.scale_by_adam` keeps the second moment in the dtype of the parameters.
    """

    def init(params: Tree) -> AdamState:
        mu = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=cfg.mu_dtype.value), params)
        nu = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=cfg.nu_dtype.value), params)
        return AdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(grads: Tree, state: AdamState, params: Tree, **_: jax.Array) -> tuple[Tree, AdamState]:
        steps = state.steps + 1
        mu_fp32 = jax.tree.map(lambda g, m: cfg.b1 * _fp32(m) + (1 - cfg.b1) * _fp32(g), grads, state.mu)
        nu_fp32 = jax.tree.map(lambda g, v: cfg.b2 * _fp32(v) + (1 - cfg.b2) * _fp32(g) ** 2, grads, state.nu)
        mu_correction, nu_correction = 1 - cfg.b1**steps, 1 - cfg.b2**steps
        ascent = jax.tree.map(
            lambda m, v: m / mu_correction / (jnp.sqrt(v / nu_correction) + cfg.eps), mu_fp32, nu_fp32
        )
        mu = jax.tree.map(lambda m: m.astype(cfg.mu_dtype.value), mu_fp32)
        nu = jax.tree.map(lambda v: v.astype(cfg.nu_dtype.value), nu_fp32)
        return ascent, AdamState(steps, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _fp32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)
