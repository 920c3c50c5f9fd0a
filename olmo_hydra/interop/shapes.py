"""What parameters a model has, without allocating them."""

import jax
from flax import nnx

from olmo_hydra.config.hardware import LayerLoop, Remat
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.model import decoder
from olmo_hydra.model.params import named


def param_shapes(model: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of each parameter by name, as `decoder.build` would make it."""
    made = nnx.eval_shape(lambda: decoder.build(model, rngs=nnx.Rngs(0), layer_loop=LayerLoop.scan, remat=Remat.none))
    leaves = named(nnx.split(made, nnx.Param)[1])
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
