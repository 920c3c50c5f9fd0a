"""Our own decoder, filled with weights from anywhere."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from olmo_hydra.config.dtypes import DType
from olmo_hydra.interop.shapes import abstract
from olmo_hydra.interop.weights import Weights
from olmo_hydra.model.params import param_names


def filled(weights: Weights, compute_dtype: DType) -> tuple[nnx.GraphDef, nnx.State]:
    """A decoder in two parts; parameters are fp32, whatever the dtype they are stored in."""
    cfg = replace(weights.model, param_dtype=DType.float32, compute_dtype=compute_dtype)
    graph, shapes = abstract(cfg)
    return graph, jax.tree.map(lambda name: jnp.asarray(weights.read(name), jnp.float32), param_names(shapes))


class Own:
    """Logits and residual streams of our decoder, in fp32 on every device."""

    def __init__(self, weights: Weights):
        self._graph, self._params = filled(weights, DType.float32)
        self._vocab_size = weights.model.vocab_size

    def logits(self, tokens_T: np.ndarray) -> np.ndarray:
        """logits_TV of one prompt, over the ids that exist."""
        with jax.default_matmul_precision("highest"):
            return np.asarray(_logits(self._graph, self._params, tokens_T[None])[0, :, : self._vocab_size])

    def residuals(self, tokens_T: np.ndarray) -> np.ndarray:
        """residual_LTD of one prompt: what the first layer reads, and the output of every layer."""
        with jax.default_matmul_precision("highest"):
            return np.asarray(_residuals(self._graph, self._params, tokens_T[None])[:, 0])


# Of the module, so that two sets of weights of one model share what is compiled.
@partial(jax.jit, static_argnums=0)
def _logits(graph: nnx.GraphDef, params: nnx.State, tokens_BT: jax.Array) -> jax.Array:
    return nnx.merge(graph, params)(tokens_BT)


@partial(jax.jit, static_argnums=0)
def _residuals(graph: nnx.GraphDef, params: nnx.State, tokens_BT: jax.Array) -> jax.Array:
    return nnx.merge(graph, params).residuals(tokens_BT)
