"""A decoder as a scorer of rows: tokens to summed cross-entropy, compiled once."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding


class Scorer:
    """`scorer(params, tokens_BT, labels_BT) -> nats_B`, in fp32 within a row. Does not wait for the devices.

    Args:
      graphdef: The decoder's structure.
      place: Puts a [B, T] array on the devices; it decides the sharding.
      whole: Where the scores lie, so that every process of a run can read them all.
    """

    def __init__(
        self, graphdef: nnx.GraphDef, place: Callable[[np.ndarray], jax.Array], whole: NamedSharding | None = None
    ):
        def nats(params: nnx.State, tokens_BT: jax.Array, labels_BT: jax.Array) -> jax.Array:
            return nnx.merge(graphdef, params).nats(tokens_BT, labels_BT).sum(axis=-1)

        self._nats: Any = jax.jit(nats, out_shardings=whole)
        self._place = place

    def compile(self, params: nnx.State, batch: int, seq_len: int) -> None:
        """Compiles it for rows of one shape, and parameters as these, which may be shapes with shardings."""
        rows_BT = self._place(np.zeros((batch, seq_len), np.int32))
        self._nats = self._nats.lower(params, rows_BT, rows_BT).compile()

    def __call__(self, params: nnx.State, tokens_BT: np.ndarray, labels_BT: np.ndarray) -> jax.Array:
        return self._nats(params, self._place(tokens_BT), self._place(labels_BT))
