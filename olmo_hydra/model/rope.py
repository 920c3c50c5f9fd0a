"""Rotary position embedding (arXiv 2104.09864) in the half-split layout: element i is paired with i + head_dim/2."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Rope(NamedTuple):
    """Rotation of every position and pair, in fp32."""

    cos_TP: jax.Array
    sin_TP: jax.Array


def tables(positions: int, head_dim: int, theta: float) -> Rope:
    """Rotations by `position * theta^(-2i/head_dim)` for positions 0 and up, and pairs i below `head_dim/2`."""
    frequency_P = jnp.asarray(theta ** (-np.arange(0, head_dim, 2) / head_dim), jnp.float32)
    angle_TP = jnp.arange(positions, dtype=jnp.float32)[:, None] * frequency_P
    return Rope(jnp.cos(angle_TP), jnp.sin(angle_TP))


def rotate(x_BTHD: jax.Array, rope: Rope) -> jax.Array:
    """Queries or keys turned by their position; computed in fp32 and cast back."""
    a_BTHP, b_BTHP = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    cos_T1P, sin_T1P = rope.cos_TP[:, None, :], rope.sin_TP[:, None, :]
    turned = (a_BTHP * cos_T1P - b_BTHP * sin_T1P, b_BTHP * cos_T1P + a_BTHP * sin_T1P)
    return jnp.concatenate(turned, axis=-1).astype(x_BTHD.dtype)
