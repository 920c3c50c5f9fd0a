"""How far two models may differ and still be the same one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from olmo_hydra.interop.weights import Weights


@dataclass(frozen=True)
class Limits:
    """What is still equal. A limit that is None judges nothing.

    Attributes:
      tensor: Relative error of the worst row of a tensor.
      stage: Relative error of the residual stream after a layer; only names the first layer that differs.
      logits: Largest difference of two logits.
      kl_max, kl_mean: Divergence in nats, of any position and on average.
      overlap: Tokens shared of the ten likeliest, on average.
    """

    tensor: float
    stage: float
    logits: float | None = None
    kl_max: float | None = None
    kl_mean: float | None = None
    overlap: float | None = None

    def scaled(self, spread: float) -> "Limits":
        """With the limit of logits as many times larger as their spread is larger than 1: rounding grows with it."""
        if self.logits is None or not math.isfinite(spread):
            return self
        return replace(self, logits=self.logits * max(1.0, spread))


# fp32: four times the noise of two implementations, for logits with a spread of 1 at most. Rounding to bf16 moves a
# logit by hundredths and is judged by what it does to the distribution, as the published JAX reproduction of Olmo 3 is
# (AI-Hypercomputer/maxtext#3886).
EXACT = Limits(tensor=1e-5, stage=1e-5, logits=2e-5, kl_max=1e-8)
ROUNDED = Limits(tensor=2**-8, stage=2e-2, kl_mean=1.5e-3, overlap=9)


def limits_of(
    both: Sequence[Weights], kl: float | None = None, logits: float | None = None, tensor: float | None = None
) -> Limits:
    """The limits for the dtypes of the two, with those that were asked for."""
    exact = all(np.dtype(it.dtype).itemsize >= 4 for weights in both for it in weights.shapes.values())
    asked = {"kl_max" if exact else "kl_mean": kl, "logits": logits, "tensor": tensor}
    return replace(EXACT if exact else ROUNDED, **{name: limit for name, limit in asked.items() if limit is not None})
