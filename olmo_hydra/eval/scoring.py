"""A decoder as a scorer of rows: tokens to summed cross-entropy, compiled once."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding


def make_scorer(
    graphdef: nnx.GraphDef, place: Callable[[np.ndarray], jax.Array], whole: NamedSharding | None = None
) -> Callable[[nnx.State, np.ndarray, np.ndarray], np.ndarray]:
    """`score(params, tokens_BT, labels_BT) -> nats_B`, in fp32 within a row.

    Args:
      graphdef: The decoder's structure.
      place: Puts a [B, T] array on the devices; it decides the sharding.
      whole: Where the scores lie, so that every process of a run can read them all.
    """

    @partial(jax.jit, out_shardings=whole)
    def nats(params: nnx.State, tokens_BT: jax.Array, labels_BT: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params).nats(tokens_BT, labels_BT).sum(axis=-1)

    def score(params: nnx.State, tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        return np.asarray(nats(params, place(tokens_BT), place(labels_BT)))

    return score
