"""Rotary position embedding (arXiv 2104.09864) in the half-split layout: element i is paired with i + head_dim/2."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.config.model import Attention, ModelConfig


@dataclass(frozen=True)
class Frequencies:
    """Radians a position of each pair, and the length of the rotations, which above one sharpens the softmax."""

    radians: tuple[float, ...]
    length: float = 1.0


class Rope(NamedTuple):
    """Rotation of every position and pair, in fp32; with a leading B where instances have positions of their own."""

    cos_TP: jax.Array
    sin_TP: jax.Array


def tables(frequencies: Frequencies, positions_T: jax.Array) -> Rope:
    """Rotations of positions, given as [T] or [B, T]."""
    angle_TP = positions_T.astype(jnp.float32)[..., None] * jnp.asarray(frequencies.radians, jnp.float32)
    return Rope(frequencies.length * jnp.cos(angle_TP), frequencies.length * jnp.sin(angle_TP))


def restarted(segments_BT: jax.Array) -> jax.Array:
    """positions_BT that count from the start of each document.

    Args:
      segments_BT: Number of the document that each position belongs to; documents do not interleave.
    """
    positions_T = jnp.arange(segments_BT.shape[1])
    begins_BT = jnp.pad(segments_BT[:, 1:] != segments_BT[:, :-1], ((0, 0), (1, 0)))
    return positions_T - jax.lax.cummax(jnp.where(begins_BT, positions_T, 0), axis=1)


def frequencies(cfg: ModelConfig, kind: Attention) -> Frequencies:
    """The frequencies of layers of a kind.

    YaRN stretches full-attention layers only (the Olmo 3 paper, OLMo-core): sliding ones never look further back than
    they were trained to.
    """
    if cfg.yarn_factor is not None and kind is Attention.full:
        return yarn(cfg, cfg.yarn_factor)
    return Frequencies(tuple((np.float32(1) / powers(cfg.rope_theta, cfg.head_dim)).tolist()))


def powers(theta: float, head_dim: int) -> np.ndarray:
    """`theta^(2i/head_dim)` of each pair i, rounded where the reference rounds.

    transformers and OLMo-core compute frequencies in fp32. An angle is a position times a frequency, so that another
    rounding of the last bit would show in the logits of long sequences.
    """
    exponent_P = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (float(theta) ** exponent_P.astype(np.float64)).astype(np.float32)


def yarn(cfg: ModelConfig, factor: float) -> Frequencies:
    """Frequencies by arXiv 2309.00071, sections 3.2 to 3.4; fp32, as `powers`."""
    pairs, one = cfg.head_dim // 2, np.float32(1)
    low, high = yarn_ends(pairs, cfg.rope_theta, cfg.yarn_original_len, cfg.yarn_beta_fast, cfg.yarn_beta_slow)
    slowed_P = yarn_ramp(pairs, low, min(high, pairs - 1))
    power_P = powers(cfg.rope_theta, cfg.head_dim)
    kept_P = one - slowed_P
    mixed_P = one / (np.float32(factor) * power_P) * (one - kept_P) + one / power_P * kept_P
    return Frequencies(tuple(mixed_P.tolist()), yarn_length(factor))


def yarn_ends(pairs: int, theta: float, original_len: int, fast: float, slow: float) -> tuple[int, int]:
    """The last pair that keeps its frequency and the first that has it divided by the factor, which need not exist.

    They turn `fast` times over `original_len` positions, or more often, and `slow` times or less often.
    """

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(original_len / (2 * math.pi * times)) / math.log(theta)

    return max(math.floor(pair_that_turns(fast)), 0), math.ceil(pair_that_turns(slow))


def yarn_ramp(pairs: int, low: int, high: int) -> np.ndarray:
    """How far each pair is slowed: 0 up to pair `low`, 1 from pair `high` on, and a straight line in between."""
    return np.clip((np.arange(pairs, dtype=np.float32) - low) / np.float32(max(high - low, 1e-3)), 0, 1)


def yarn_length(factor: float) -> float:
    """The length of the rotations that goes with a factor (arXiv 2309.00071, equation 22)."""
    return 0.1 * math.log(factor) + 1


def rotate(x_BTHD: jax.Array, rope: Rope) -> jax.Array:
    """Queries or keys turned by their position; computed in fp32 and cast back."""
    a_BTHP, b_BTHP = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    cos_T1P, sin_T1P = rope.cos_TP[..., None, :], rope.sin_TP[..., None, :]
    turned = (a_BTHP * cos_T1P - b_BTHP * sin_T1P, b_BTHP * cos_T1P + a_BTHP * sin_T1P)
    return jnp.concatenate(turned, axis=-1).astype(x_BTHD.dtype)
