"""Attention by cuDNN's fused kernel, through JAX's call of it. For NVIDIA GPUs, in bf16."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.remat import Point
from olmo_hydra.model.kernels.xla import visible

HOPPER, WIDE_HEAD = "9.0", 128  # compute capability from which heads may be wider than this


def attention(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    *,
    window: int | None,
    scale: float,
    segments_BT: jax.Array | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """See `Attend`. Logits and softmax are fp32 inside the kernel.

    Without segments nothing of size T x T exists. With them a mask does, and its gradient: 2 bytes a pair each, for
    every instance at once, and the window is part of it, because cuDNN before 9.10.2 takes no window beside a mask
    (NVIDIA/cudnn-frontend). The packed layout that would avoid it is not in JAX's public interface (jax-ml/jax#29731),
    needs a fixed largest number of documents, and reads wrong keys where queries are grouped (jax-ml/jax#39521).

    Args:
      implementation: `xla` computes the same call on any platform, to check its arguments.

    Raises:
      RequestError: This GPU takes no heads of this width.
    """
    T = q_BTHD.shape[1]
    if implementation == "cudnn":
        _check_device(q_BTHD.shape[-1])
    if window is not None and window >= T:
        window = None
    mask = None
    if segments_BT is not None:
        seen_BTS = segments_BT[:, :, None] == segments_BT[:, None, :]
        mask = (seen_BTS & visible(jnp.arange(T), jnp.arange(T), window))[:, None]
    out_BTHD = jax.nn.dot_product_attention(
        q_BTHD,
        k_BSKD,
        v_BSKD,
        mask=mask,
        scale=scale,
        is_causal=True,
        # Keys before the query's own, and after it.
        local_window_size=None if window is None or mask is not None else (window - 1, 0),
        implementation=implementation,
    )
    return checkpoint_name(out_BTHD, Point.context.value)


def _check_device(head_dim: int) -> None:
    device = jax.local_devices(backend="gpu")[0]
    if head_dim > WIDE_HEAD and float(device.compute_capability) < float(HOPPER):
        raise RequestError(
            f"cuDNN's attention takes heads of at most {WIDE_HEAD} on this GPU ({device.device_kind})",
            key="model.head_dim",
            value=head_dim,
            instead=f"hardware.attention=xla, or model.head_dim={WIDE_HEAD}",
        )
