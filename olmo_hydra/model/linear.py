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
      one_token_axis: Multiplies [N, D], with all tokens in one axis: XLA:CPU fuses around such products far better than
        around those of [B, T, D] (twice on a SwiGLU). Not where a mesh divides both B and T: one axis made of two such
        has no sharding, and the compiler would gather one of them.
      point: What the result is called where a layer says what it keeps for the backward pass.
    """

    def __init__(
        self,
        weight: nnx.Param,
        *,
        out_dtype: str | None = None,
        one_token_axis: bool = True,
        point: Point | None = None,
    ):
        self.weight = weight
        self.out_dtype = out_dtype
        self.one_token_axis = one_token_axis
        self.point = point

    def __call__(self, x: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1]) if self.one_token_axis else x
        y = jnp.dot(rows, self.weight[...].astype(x.dtype), preferred_element_type=self.out_dtype)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.point is None else checkpoint_name(y, self.point.value)


class Embedding(nnx.Module):
    """Rows of a table, in `compute_dtype`."""

    def __init__(self, weight: nnx.Param, compute_dtype: DType):
        self.weight = weight
        self.compute_dtype = compute_dtype.value

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        # Cast after the lookup, so that gradients of repeated tokens add up in the table's own dtype.
        return self.weight[...][tokens_BT].astype(self.compute_dtype)
