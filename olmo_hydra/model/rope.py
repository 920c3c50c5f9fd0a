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
    """Rotation of every position and pair, in fp32."""

    cos_TP: jax.Array
    sin_TP: jax.Array


def tables(frequencies: Frequencies, positions: int) -> Rope:
    """Rotations of positions 0 and up."""
    angle_TP = jnp.arange(positions, dtype=jnp.float32)[:, None] * jnp.asarray(frequencies.radians, jnp.float32)
    return Rope(frequencies.length * jnp.cos(angle_TP), frequencies.length * jnp.sin(angle_TP))


def frequencies(cfg: ModelConfig, kind: Attention) -> Frequencies:
    """The frequencies of layers of a kind.

    YaRN stretches full-attention layers only (the Olmo 3 paper, OLMo-core): sliding ones never look further back than
    they were trained to.
    """
    if cfg.yarn_factor is not None and kind is Attention.full:
        return yarn(cfg, cfg.yarn_factor)
    return Frequencies(tuple(plain(cfg).tolist()))


def plain(cfg: ModelConfig) -> np.ndarray:
    """`theta^(-2i/head_dim)` of each pair i."""
    return cfg.rope_theta ** (-np.arange(0, cfg.head_dim, 2) / cfg.head_dim)


def yarn(cfg: ModelConfig, factor: float) -> Frequencies:
    """Frequencies by arXiv 2309.00071, sections 3.2 to 3.4.

    Pairs that turn more than `yarn_beta_fast` times over `yarn_original_len` keep their frequency, those that turn less
    than `yarn_beta_slow` times have it divided by `factor`, and in between it is mixed linearly.
    """
    pairs = cfg.head_dim // 2

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(cfg.yarn_original_len / (2 * math.pi * times)) / math.log(cfg.rope_theta)

    low = max(math.floor(pair_that_turns(cfg.yarn_beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(cfg.yarn_beta_slow)), pairs - 1)
    slowed_P = np.clip((np.arange(pairs) - low) / max(high - low, 1e-3), 0, 1)
    frequency_P = plain(cfg)
    mixed_P = frequency_P / factor * slowed_P + frequency_P * (1 - slowed_P)
    return Frequencies(tuple(mixed_P.tolist()), 0.1 * math.log(factor) + 1)


def rotate(x_BTHD: jax.Array, rope: Rope) -> jax.Array:
    """Queries or keys turned by their position; computed in fp32 and cast back."""
    a_BTHP, b_BTHP = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    cos_T1P, sin_T1P = rope.cos_TP[:, None, :], rope.sin_TP[:, None, :]
    turned = (a_BTHP * cos_T1P - b_BTHP * sin_T1P, b_BTHP * cos_T1P + a_BTHP * sin_T1P)
    return jnp.concatenate(turned, axis=-1).astype(x_BTHD.dtype)
