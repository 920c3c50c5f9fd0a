"""Projections without bias, and the input table."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.remat import Point


class Linear(nnx.Module):
    """`x @ weight`, with `weight` of shape (inputs, outputs) cast to the element type of `x`.

    Args:
      weight: The parameter.
      out_dtype: Element type of the result; null for that of `x`.
      point: What the result is called where a layer says what it keeps for the backward pass.
    """

    def __init__(self, weight: nnx.Param, *, out_dtype: str | None = None, point: Point | None = None):
        self.weight = weight
        self.out_dtype = out_dtype
        self.point = point

    def __call__(self, x: jax.Array) -> jax.Array:
        # One token axis: XLA:CPU fuses around 2-D matmuls far better than around 3-D ones (twice on a SwiGLU).
        x_ND = x.reshape(-1, x.shape[-1])
        y_ND = jnp.dot(x_ND, self.weight[...].astype(x.dtype), preferred_element_type=self.out_dtype)
        y = y_ND.reshape(*x.shape[:-1], -1)
        return y if self.point is None else checkpoint_name(y, self.point.value)


class Embedding(nnx.Module):
    """Rows of a table, in `compute_dtype`."""

    def __init__(self, weight: nnx.Param, compute_dtype: DType):
        self.weight = weight
        self.compute_dtype = compute_dtype.value

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        # Cast after the lookup, so that gradients of repeated tokens add up in the table's own dtype.
        return self.weight[...][tokens_BT].astype(self.compute_dtype)
