"""Attention of a batch and its gradients in numpy float64, and the one comparison that every kernel passes."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.model.kernels import Attend
from tests.model.reference import attend

NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Case:
    """What is attended to; `documents` is their number in a row, 0 for no document mask."""

    positions: int
    window: int | None
    documents: int = 0
    batch: int = 2
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 8


class Arrays(NamedTuple):
    q_BTHD: np.ndarray
    k_BSKD: np.ndarray
    v_BSKD: np.ndarray
    cotangent_BTHD: np.ndarray
    segments_BT: np.ndarray | None


def draw(case: Case, seed: int) -> Arrays:
    """Normal values; documents of random lengths, each row its own."""
    rng = np.random.default_rng(seed)
    B, T, K, D = case.batch, case.positions, case.kv_heads, case.head_dim
    q, cotangent = rng.normal(size=(2, B, T, K * case.group, D))
    k, v = rng.normal(size=(2, B, T, K, D))
    segments = np.sort(rng.integers(0, case.documents, (B, T)), axis=1) if case.documents else None
    return Arrays(q, k, v, cotangent, segments)


def expected(case: Case, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """out, dq, dk, dv, by the softmax's derivative: dlogits = weights * (dweights - their weighted mean)."""
    q, k, v, cotangent, segments = arrays
    out, dq, dk, dv = np.empty_like(q), np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    age = np.subtract.outer(np.arange(case.positions), np.arange(case.positions))
    for b in range(case.batch):
        seen = (age >= 0) & (age < (case.window or np.inf))
        if segments is not None:
            seen &= np.equal.outer(segments[b], segments[b])
        for h in range(q.shape[2]):
            g, scale = h // case.group, case.head_dim**-0.5
            out[b, :, h] = attend(
                q[b, :, h], k[b, :, g], v[b, :, g], case.window, None if segments is None else segments[b]
            )
            powers = np.where(seen, np.exp(scale * q[b, :, h] @ k[b, :, g].T), 0)
            weights = powers / powers.sum(-1, keepdims=True)
            dweights = cotangent[b, :, h] @ v[b, :, g].T
            dlogits = weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
            dq[b, :, h] = scale * dlogits @ k[b, :, g]
            dk[b, :, g] += scale * dlogits.T @ q[b, :, h]
            dv[b, :, g] += weights.T @ cotangent[b, :, h]
    return out, dq, dk, dv


def computed(attend: Attend, case: Case, arrays: Arrays, dtype: str = "float32") -> tuple[jax.Array, ...]:
    """The same of a kernel, compiled quickly."""
    q, k, v, cotangent = (jnp.asarray(x, dtype) for x in arrays[:4])
    segments = None if arrays.segments_BT is None else jnp.asarray(arrays.segments_BT, jnp.int32)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> tuple[jax.Array, ...]:
        def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return attend(q, k, v, window=case.window, scale=case.head_dim**-0.5, segments_BS=segments)

        out, pull = jax.vjp(forward, q, k, v)
        return out, *pull(cotangent)

    return run(q, k, v, segments)


def assert_equals_reference(attend: Attend, case: Case, seed: int, atol: float = 1e-5) -> None:
    """Values and all gradients in fp32, within `atol` of numbers of order one."""
    arrays = draw(case, seed)
    for name, found, wanted in zip(NAMES, computed(attend, case, arrays), expected(case, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol, err_msg=f"{name} of {case}, seed {seed}")
