"""cuDNN's attention against float64 on one GPU: values and gradients, in bf16.

    python benchmarks/gpu_attention.py [--positions N] [--head-dims D,D] [--implementation cudnn|xla]

Prints one JSON object: for each case the root mean square of the difference of the output, and of the gradients of
queries, keys and values, from a float64 reference of the same bf16 inputs, as a fraction of the reference's own, and
whether all are within the tolerance. Exit status 1 if not. `--implementation xla` makes the same call on any platform.

Rounding to bf16 costs a fraction of about 0.003; a window of w keys that is one too short costs about 1 / sqrt(w), and
a wrong mask or group about 1.
"""

import argparse
import itertools
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from olmo_hydra.model.kernels import cudnn

TOLERANCE = 0.02
SMALL = 0.05  # a root mean square below this is not divided by: gradients can be zero
BATCH, KV_HEADS = 2, 2
NAMES = ("out", "dq", "dk", "dv")


def main() -> None:
    parser = argparse.ArgumentParser(description="cuDNN's attention against float64")
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--implementation", choices=["cudnn", "xla"], default="cudnn")
    args = parser.parse_args()
    device = jax.devices()[0]
    windows = (None, 1, args.positions // 8)
    head_dims = [int(text) for text in args.head_dims.split(",")]
    cases = []
    for head_dim, window, documents in itertools.product(head_dims, windows, (0, 4)):
        group = 1 if window == 1 else 3
        errors = compare(args.implementation, args.positions, head_dim, window, group, documents)
        cases.append({"head_dim": head_dim, "window": window, "group": group, "documents": documents, **errors})
    worst = max(case[name] for case in cases for name in NAMES)
    result = {
        "passed": bool(worst <= TOLERANCE),  # False for a NaN too
        "worst": worst,
        "tolerance": TOLERANCE,
        "implementation": args.implementation,
        "platform": device.platform,
        "device": device.device_kind,
        "jax": jax.__version__,
        "positions": args.positions,
        "cases": cases,
    }
    print(json.dumps(result))
    sys.exit(not result["passed"])


def compare(
    implementation: str, positions: int, head_dim: int, window: int | None, group: int, documents: int
) -> dict[str, float]:
    """Root mean square differences of one case, as fractions of the reference's own."""
    rng = np.random.default_rng(0)
    B, T, K, H = BATCH, positions, KV_HEADS, KV_HEADS * group
    shapes = ((B, T, H, head_dim), (B, T, K, head_dim), (B, T, K, head_dim), (B, T, H, head_dim))
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    segments = np.sort(rng.integers(0, documents, (B, T)), axis=1).astype(np.int32) if documents else None
    attend = partial(
        cudnn.attention, window=window, scale=head_dim**-0.5, segments_BS=segments, implementation=implementation
    )

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, ...]:
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(cotangent)

    wanted = reference(*(np.asarray(x, np.float64) for x in arrays), window, segments)
    found = (np.asarray(x, np.float64) for x in run(*arrays))
    return {
        name: root_mean_square(f - w) / max(root_mean_square(w), SMALL)
        for name, f, w in zip(NAMES, found, wanted, strict=True)
    }


def root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x).mean()))


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cotangent: np.ndarray,
    window: int | None,
    segments: np.ndarray | None,
) -> tuple[np.ndarray, ...]:
    """out, dq, dk, dv in float64, with keys and values repeated over the queries of their group."""
    (B, T, H, D), K = q.shape, k.shape[2]
    repeated = [np.repeat(x, H // K, axis=2) for x in (k, v)]
    q, k, v, cotangent = (x.transpose(0, 2, 1, 3) for x in (q, *repeated, cotangent))
    age = np.subtract.outer(np.arange(T), np.arange(T))
    seen = ((age >= 0) & (age < (window or T)))[None, None]
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    logits = np.where(seen, q @ k.swapaxes(2, 3) / np.sqrt(D), -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    dweights = cotangent @ v.swapaxes(2, 3)
    dlogits = weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    dq, dk = dlogits @ k / np.sqrt(D), dlogits.swapaxes(2, 3) @ q / np.sqrt(D)
    of_queries = (weights @ v, dq)
    of_keys = (x.reshape(B, K, H // K, T, D).sum(2) for x in (dk, weights.swapaxes(2, 3) @ cotangent))
    return tuple(x.transpose(0, 2, 1, 3) for x in (*of_queries, *of_keys))


if __name__ == "__main__":
    main()
