"""Cross-entropy of next-token prediction, by which models are trained and judged."""

import jax
import jax.numpy as jnp


def cross_entropy(logits_BTV: jax.Array, labels_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(nats_BT, partition_BT) of each token, fp32: cross-entropy and log-partition; 0 where the label is negative.

    The label's logit is picked by a comparison, not by a gather: its gradient is then an elementwise product that fuses
    with the softmax, where a gather's would be a scatter into the logits. Any leading dimensions will do.
    """
    logits_BTV = logits_BTV.astype(jnp.float32)
    counted_BT = labels_BT >= 0
    partition_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    is_label_BTV = jnp.arange(logits_BTV.shape[-1]) == labels_BT[..., None]
    label_logit_BT = jnp.where(is_label_BTV, logits_BTV, 0.0).sum(axis=-1)
    return jnp.where(counted_BT, partition_BT - label_logit_BT, 0.0), jnp.where(counted_BT, partition_BT, 0.0)
