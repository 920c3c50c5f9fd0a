"""The arithmetic of a comparison: tensors, logits, residual streams."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PIECE = 1 << 22  # elements compared at a time, so that their float64 copies stay small


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs.

    Attributes:
      name: Of the parameter.
      relative_error: Of its worst row: norm of the difference over norm of the first's row. By row, so that one spoilt
        row of a long table is seen.
      max_abs: Largest difference of two elements.
      equal: Bit for bit, dtypes included.
      equal_rounded: Bit for bit once the wider is rounded to the dtype of the narrower.
    """

    name: str
    relative_error: float
    max_abs: float
    equal: bool
    equal_rounded: bool


def tensor_difference(name: str, a: np.ndarray, b: np.ndarray) -> TensorDifference:
    """Compares two vectors or matrices of one shape; a value that is not finite in one only is infinitely wrong."""
    narrow = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    rounded_equal, worst, max_abs = True, 0.0, 0.0
    for piece_a, piece_b in _pieces(a, b):
        rounded_equal &= piece_a.astype(narrow).tobytes() == piece_b.astype(narrow).tobytes()
        wide_a, wide_b = piece_a.astype(np.float64), piece_b.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            difference = np.where(wide_a == wide_b, 0.0, np.abs(wide_a - wide_b))
            difference[np.isnan(wide_a) & np.isnan(wide_b)] = 0.0
            difference[np.isnan(difference)] = np.inf
            off, size = np.linalg.norm(difference, axis=-1), np.linalg.norm(wide_a, axis=-1)
            row_errors = np.where(off == 0, 0.0, off / size)
        worst = max(worst, float(np.nan_to_num(row_errors, nan=np.inf, posinf=np.inf).max()))
        max_abs = max(max_abs, float(difference.max()))
    return TensorDifference(name, worst, max_abs, rounded_equal and a.dtype == b.dtype, rounded_equal)


def _pieces(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    rows = max(1, PIECE // a.shape[1])
    for start in range(0, len(a), rows):
        yield a[start : start + rows], b[start : start + rows]


class LogitDifference:
    """How the logits of two models differ over prompts; `add` a prompt after the other.

    Attributes:
      kl_mean: Divergence of the second's next-token distribution from the first's, in nats, over all positions.
      kl_max: Its largest value.
      max_abs: Largest difference of two logits.
      spread: Standard deviation of the first's logits over the vocabulary, on average over positions.
      worst_prompt: Number of the prompt that `kl_max` is in.
      finite: Whether all logits of the first and of the second are numbers.
    """

    def __init__(self, ks: tuple[int, ...]):
        self.kl_max, self.max_abs, self.worst_prompt = -np.inf, 0.0, 0
        self._kl_sum, self._std_sum, self._positions, self._prompts = 0.0, 0.0, 0, 0
        self._shared = dict.fromkeys(ks, 0)
        self.finite = (True, True)

    def add(self, a_TV: np.ndarray, b_TV: np.ndarray) -> None:
        """Counts the next prompt. NaN is infinitely far: no comparison with a limit may pass by it."""
        positions = max(1, PIECE // a_TV.shape[1])
        for start in range(0, len(a_TV), positions):
            with np.errstate(invalid="ignore"):
                self._add(*(x_TV[start : start + positions].astype(np.float64) for x_TV in (a_TV, b_TV)))
        self._prompts += 1

    def _add(self, a_TV: np.ndarray, b_TV: np.ndarray) -> None:
        finite_a, finite_b = self.finite
        self.finite = (finite_a and bool(np.isfinite(a_TV).all()), finite_b and bool(np.isfinite(b_TV).all()))
        kl_T, difference_TV = (
            np.nan_to_num(x, nan=np.inf, posinf=np.inf) for x in (divergence(a_TV, b_TV), np.abs(a_TV - b_TV))
        )
        if kl_T.max() > self.kl_max:
            self.kl_max, self.worst_prompt = float(kl_T.max()), self._prompts
        self.max_abs = max(self.max_abs, float(difference_TV.max()))
        self._kl_sum += float(kl_T.sum())
        self._std_sum += float(a_TV.std(-1).sum())
        for k in self._shared:
            self._shared[k] += shared_top(a_TV, b_TV, k)
        self._positions += len(kl_T)

    @property
    def kl_mean(self) -> float:
        return self._kl_sum / self._positions

    @property
    def spread(self) -> float:
        return self._std_sum / self._positions

    def overlap(self, k: int) -> float:
        """How many of the k likeliest tokens the two share, on average over positions."""
        return self._shared[k] / self._positions


def divergence(a_TV: np.ndarray, b_TV: np.ndarray) -> np.ndarray:
    """kl_T: KL(a || b) of the distributions that logits describe, in nats."""
    log_p_TV, log_q_TV = _log_softmax(a_TV), _log_softmax(b_TV)
    return (np.exp(log_p_TV) * (log_p_TV - log_q_TV)).sum(-1)


def shared_top(a_TV: np.ndarray, b_TV: np.ndarray, k: int) -> int:
    """Tokens among the k likeliest of both, summed over positions."""
    k = min(k, a_TV.shape[-1])
    top_a, top_b = (np.argpartition(-x, k - 1, axis=-1)[:, :k] for x in (a_TV, b_TV))
    return sum(len(np.intersect1d(a, b)) for a, b in zip(top_a, top_b, strict=True))


def stage_errors(a_LTD: np.ndarray, b_LTD: np.ndarray) -> dict[str, float]:
    """Relative error (norm of the difference over norm of the first) of the residual stream at every stage of a model.

    `embedding` is what the first layer reads, `layer 0` what it gives, and so on.
    """
    stages = ["embedding", *(f"layer {layer}" for layer in range(len(a_LTD) - 1))]
    pairs = zip(a_LTD.astype(np.float64), b_LTD.astype(np.float64), strict=True)
    with np.errstate(invalid="ignore"):
        errors = [np.linalg.norm(a - b) / max(np.linalg.norm(a), np.finfo(np.float64).tiny) for a, b in pairs]
    return {stage: float(error) for stage, error in zip(stages, errors, strict=True)}


def first_over(errors: dict[str, float], tolerance: float) -> str | None:
    """The first stage whose error is not within the tolerance."""
    return next((stage for stage, error in errors.items() if not error <= tolerance), None)


def _log_softmax(logits_TV: np.ndarray) -> np.ndarray:
    shifted_TV = logits_TV - logits_TV.max(-1, keepdims=True)
    return shifted_TV - np.log(np.exp(shifted_TV).sum(-1, keepdims=True))
