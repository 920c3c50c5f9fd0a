"""Projections without bias, and the input table."""

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import ModelConfig
from olmo_hydra.model import init


class Linear(nnx.Module):
    """`x @ weight`, with `weight` of shape (inputs, outputs) cast to `compute_dtype`.

    Args:
      shape: Inputs and outputs.
      axes: Their logical names.
      out_dtype: Element type of the result; null for that of `x`.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        shape: tuple[int, int],
        axes: tuple[str, str],
        *,
        rngs: nnx.Rngs,
        out_dtype: str | None = None,
    ):
        self.weight = init.truncated_normal(cfg, shape, axes, rngs)
        self.out_dtype = out_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        # One token axis: XLA:CPU fuses around 2-D matmuls far better than around 3-D ones (twice on a SwiGLU).
        x_ND = x.reshape(-1, x.shape[-1])
        y_ND = jnp.dot(x_ND, self.weight[...].astype(x.dtype), preferred_element_type=self.out_dtype)
        return y_ND.reshape(*x.shape[:-1], -1)


class Embedding(nnx.Module):
    """Rows of a table, in `compute_dtype`."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        self.weight = init.truncated_normal(cfg, (cfg.padded_vocab, cfg.d_model), ("vocab", "embed"), rngs)
        self.compute_dtype = cfg.compute_dtype.value

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        # Cast after the lookup, so that gradients of repeated tokens add up in the table's own dtype.
        return self.weight[...][tokens_BT].astype(self.compute_dtype)
