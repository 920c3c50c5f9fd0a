"""What every kernel is: a function of queries, keys and values."""

from typing import Protocol

import jax


class Attend(Protocol):
    """Softmax attention of every query over its own position and those before it.

    Args:
      q_BTHD: Queries; consecutive groups of H/K heads share a key-value head.
      k_BSKD: Keys, at the same positions as the queries (S = T).
      v_BSKD: Values.
      window: Query i sees keys i-window+1 to i; null for all keys up to i.
      scale: Factor of the dot products.
      segments_BT: Number of the document that each position belongs to; a query sees its own document only. Null: one
        document.

    Returns:
      out_BTHD in the dtype of the values, under the name `Point.context` for what keeps it for the backward pass.
    """

    def __call__(
        self,
        q_BTHD: jax.Array,
        k_BSKD: jax.Array,
        v_BSKD: jax.Array,
        *,
        window: int | None,
        scale: float,
        segments_BT: jax.Array | None = None,
    ) -> jax.Array: ...
