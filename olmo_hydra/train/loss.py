"""Cross-entropy and z-loss of next-token prediction."""

import jax
import jax.numpy as jnp

from olmo_hydra.data.loader import IGNORED


def token_losses(logits_NV: jax.Array, labels_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over the tokens whose label is not `IGNORED`: (cross-entropy in nats, squared log-partition), fp32.

    The label's logit is picked by a comparison, not by a gather: its gradient is then an elementwise product that fuses
    with the softmax, where a gather's would be a scatter into [N, V].
    """
    logits_NV = logits_NV.astype(jnp.float32)
    counted_N = labels_N != IGNORED
    partition_N = jax.nn.logsumexp(logits_NV, axis=-1)
    is_label_NV = jnp.arange(logits_NV.shape[-1]) == labels_N[:, None]
    label_logit_N = jnp.where(is_label_NV, logits_NV, 0.0).sum(axis=-1)
    nats = jnp.where(counted_N, partition_N - label_logit_N, 0.0)
    squares = jnp.where(counted_N, jnp.square(partition_N), 0.0)
    return nats.sum(), squares.sum()
