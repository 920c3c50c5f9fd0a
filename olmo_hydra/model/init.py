"""Initial values, and the logical axes that every parameter carries."""

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.model import ModelConfig

# Parameters carry `axes`, one logical name a dimension, from which `train` derives their sharding. The name is our own:
# flax acts by itself on its metadata `sharding` and needs a mesh in scope for that.


def truncated_normal(cfg: ModelConfig, shape: tuple[int, ...], axes: tuple[str, ...], rngs: nnx.Rngs) -> nnx.Param:
    """A parameter drawn from N(0, init_std) cut at `init_cut` standard deviations of that uncut normal.

    As `torch.nn.init.trunc_normal_` with a and b at the cut: the spread of what remains is slightly below `init_std`
    (by 1.3 % for a cut at 3). Olmo 3 draws every matrix and the input table so, without scaling by depth
    (allenai/OLMo-core, `nn/transformer/init.py`).
    """
    draw = jax.random.truncated_normal(rngs.params(), -cfg.init_cut, cfg.init_cut, shape, jnp.float32)
    return nnx.Param((cfg.init_std * draw).astype(cfg.param_dtype.value), axes=axes)


def ones(cfg: ModelConfig, width: int, axis: str) -> nnx.Param:
    """The gain of a norm."""
    return nnx.Param(jnp.ones((width,), cfg.param_dtype.value), axes=(axis,))
