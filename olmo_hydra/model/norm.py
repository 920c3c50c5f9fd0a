"""Normalisation layers. A new one is a class here and a line in `build`."""

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import ModelConfig
from olmo_hydra.model import init


def build(cfg: ModelConfig, width: int, axis: str) -> "RMSNorm":
    """The norm of a residual stream, a projection or a head, over a last axis of `width` elements named `axis`."""
    return RMSNorm(cfg, width, axis)


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, computed in fp32 and cast back (arXiv 1910.07467)."""

    def __init__(self, cfg: ModelConfig, width: int, axis: str):
        self.weight = init.ones(cfg, width, axis)
        self.eps = cfg.norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        x_fp32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x_fp32), axis=-1, keepdims=True)
        return (x_fp32 * jax.lax.rsqrt(mean_square + self.eps) * self.weight[...]).astype(x.dtype)
