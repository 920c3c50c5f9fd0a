"""Initial values, and the logical axes that every parameter carries."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import InitMethod, ModelConfig
from olmo_hydra.config.remat import Point
from olmo_hydra.model.linear import Linear

# Parameters carry `axes`, one logical name a dimension, from which `train` derives their sharding. The name is our own:
# flax acts by itself on its metadata `sharding` and needs a mesh in scope for that.


@dataclass(frozen=True)
class Init:
    """Draws the matrices of one place in the model.

    Args:
      cfg: The model.
      rngs: Their `params` stream is drawn from.
      layer: Number of the layer from 0, which may be traced; None outside the layers.
      one_token_axis: Of every `Linear`.
    """

    cfg: ModelConfig
    rngs: nnx.Rngs
    layer: jax.Array | int | None = None
    one_token_axis: bool = True

    def linear(self, shape: tuple[int, int], axes: tuple[str, str], point: Point, *, adds: bool = False) -> Linear:
        """A projection of a layer. `adds`: it belongs to what a layer adds to the residual, and `llama` shrinks it."""
        std: float | jax.Array = self.cfg.init_std
        if self.cfg.init_method is InitMethod.fan_in:
            std = 1 / math.sqrt(shape[0])
        elif adds and self.cfg.init_method is InitMethod.llama:
            std = std / math.sqrt(2 * self.cfg.n_layers)
        elif adds and self.cfg.init_method is InitMethod.llama_depth:
            assert self.layer is not None
            std = std / jnp.sqrt(2 * (self.layer + 1))
        return Linear(self._truncated(std, shape, axes), one_token_axis=self.one_token_axis, point=point)

    def head(self, shape: tuple[int, int], axes: tuple[str, str]) -> Linear:
        """The head, with results in fp32: initially one over the root of the width, but for `normal`."""
        is_normal = self.cfg.init_method is InitMethod.normal
        weight = self._truncated(self.cfg.init_std if is_normal else 1 / math.sqrt(shape[0]), shape, axes)
        return Linear(weight, out_dtype="float32", one_token_axis=self.one_token_axis)

    def embedding(self, shape: tuple[int, int], axes: tuple[str, str]) -> nnx.Param:
        """The input table: uncut and with standard deviation 1, but for `normal`."""
        if self.cfg.init_method is InitMethod.normal:
            return self._truncated(self.cfg.init_std, shape, axes)
        return self._param(jax.random.normal(self.rngs.params(), shape, jnp.float32), axes)

    def _truncated(self, std: float | jax.Array, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
        # As `torch.nn.init.trunc_normal_` with a and b at the cut: the spread of what remains is slightly below `std`
        # (by 1.3 % for a cut at 3).
        cut = self.cfg.init_cut
        return self._param(std * jax.random.truncated_normal(self.rngs.params(), -cut, cut, shape, jnp.float32), axes)

    def _param(self, value: jax.Array, axes: tuple[str, ...]) -> nnx.Param:
        return nnx.Param(value.astype(self.cfg.param_dtype.value), axes=axes)


def ones(cfg: ModelConfig, width: int, axis: str) -> nnx.Param:
    """The gain of a norm."""
    return nnx.Param(jnp.ones((width,), cfg.param_dtype.value), axes=(axis,))
