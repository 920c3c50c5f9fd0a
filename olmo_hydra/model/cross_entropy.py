"""Cross-entropy of next-token prediction, by which models are trained and judged."""

import jax
import jax.numpy as jnp


def cross_entropy(logits_NV: jax.Array, labels_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(nats_N, partition_N) of each token, fp32: cross-entropy and log-partition; 0 where the label is negative.

    The label's logit is picked by a comparison, not by a gather: its gradient is then an elementwise product that fuses
    with the softmax, where a gather's would be a scatter into [N, V].
    """
    logits_NV = logits_NV.astype(jnp.float32)
    counted_N = labels_N >= 0
    partition_N = jax.nn.logsumexp(logits_NV, axis=-1)
    is_label_NV = jnp.arange(logits_NV.shape[-1]) == labels_N[:, None]
    label_logit_N = jnp.where(is_label_NV, logits_NV, 0.0).sum(axis=-1)
    return jnp.where(counted_N, partition_N - label_logit_N, 0.0), jnp.where(counted_N, partition_N, 0.0)
