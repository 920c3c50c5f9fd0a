"""What a model is made of, without allocating it."""

import jax
from flax import nnx

from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.config.remat import Remat
from olmo_hydra.model import decoder
from olmo_hydra.model.params import named


def abstract(model: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """Structure and parameters of the decoder, with shapes in place of arrays."""
    made = nnx.eval_shape(lambda: decoder.build(model, rngs=nnx.Rngs(0), layer_loop=LayerLoop.scan, remat=Remat.none))
    return nnx.split(made, nnx.Param)


def param_shapes(model: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of each parameter by name, as `decoder.build` would make it."""
    leaves = named(abstract(model)[1])
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
