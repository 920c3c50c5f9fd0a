"""`olmo-hydra convert verify`: whether two places hold the same model, by its tensors and by its logits."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.model import Attention
from olmo_hydra.interop import reference
from olmo_hydra.interop.agreement import differing_meaning, differing_shapes, layer_kinds, pairs
from olmo_hydra.interop.compare import LogitDifference, first_over, stage_errors, tensor_difference
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.limits import ROUNDED, Limits, limits_of
from olmo_hydra.interop.own import Own
from olmo_hydra.interop.weights import Weights

SEED = 0  # of the prompts
JUDGED_K = 10  # of how many likeliest tokens the overlap is judged
SHOWN = 5  # tensors in a list of failures


class Forward(Protocol):
    """A model in memory."""

    def logits(self, tokens_T: np.ndarray) -> np.ndarray: ...

    def residuals(self, tokens_T: np.ndarray) -> np.ndarray: ...


@dataclass
class Report:
    """What a comparison found.

    `failures` says why it did not pass; `notes` what one should know beside the numbers; `not_finite` the places whose
    logits are no numbers, which says nothing about the other place; `rounding_only` that nothing but the limit of
    logits failed, between equal tensors.
    """

    a: dict[str, str]
    b: dict[str, str]
    limits: dict[str, float | None]
    prompts: int
    length: int
    seed: int = SEED
    tensors: dict[str, Any] = field(default_factory=dict)
    logits: dict[str, Any] = field(default_factory=dict)
    first_difference: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    rounding_only: bool = False

    @property
    def passed(self) -> bool:
        return not self.failures

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: a number that is not finite becomes null."""
        return _finite({"passed": self.passed, **asdict(self)})


def verify(
    a: Weights,
    b: Weights,
    *,
    prompts: int,
    length: int,
    kl: float | None = None,
    logits: float | None = None,
    tensor: float | None = None,
    top_k: Sequence[int] = (JUDGED_K,),
) -> Report:
    """Compares two sets of weights.

    Logits are fp32 on both sides, of the weights as they are stored. Both models are in memory one after the other,
    and the logits of the first: prompts x length x vocabulary x 4 bytes.

    Args:
      prompts: How many prompts of random tokens, drawn from a fixed seed.
      length: Tokens of each.
      kl: Limit of the divergence instead of the default one.
      logits: Limit of the largest difference of two logits, whatever their spread, instead of the default one.
      tensor: Limit of the relative error of a tensor's worst row instead of the default one.
      top_k: Numbers of likeliest tokens for which the overlap is reported; judged is that of ten.

    Raises:
      RequestError: The two have different shapes, or a number makes no sense.
    """
    asked = {"--kl": kl, "--logits": logits, "--tensor": tensor}
    _check(a, b, {"--prompts": prompts, "--length": length, "--top-k": min(top_k)}, asked)
    limits = limits_of((a, b), kl, logits, tensor)
    report = Report(_side(a), _side(b), asdict(limits), prompts, length)
    report.failures += [f"the models differ: {sentence}" for sentence in differing_meaning(a.model, b.model)]
    _tensors(report, a, b, limits)
    rng = np.random.default_rng(SEED)
    tokens_NT = rng.integers(0, a.model.vocab_size, (prompts, length), dtype=np.int32)
    _logits(report, a, b, tokens_NT, limits, tuple(sorted({JUDGED_K, *top_k})), logits is None)
    _about_windows(report, a)
    return report


def _tensors(report: Report, a: Weights, b: Weights, limits: Limits) -> None:
    found = [tensor_difference(*pair) for pair in pairs(a, b)]
    worst = max(found, key=lambda difference: difference.relative_error)
    report.tensors = {
        "count": len(found),
        "equal": sum(difference.equal for difference in found),
        "equal_when_rounded": sum(difference.equal_rounded for difference in found),
        "worst": {"name": worst.name, "relative_error": worst.relative_error, "max_abs": worst.max_abs},
    }
    too_far = [difference for difference in found if not difference.relative_error <= limits.tensor]
    report.failures += [
        f"tensor {difference.name}: relative error {difference.relative_error:.3g}, over {limits.tensor:.3g}"
        for difference in sorted(too_far, key=lambda difference: -difference.relative_error)[:SHOWN]
    ]
    if len(too_far) > SHOWN:
        report.failures.append(f"{len(too_far) - SHOWN} more tensors are over {limits.tensor:.3g}")
    if limits.tensor == ROUNDED.tensor and not too_far and not all(difference.equal_rounded for difference in found):
        narrow = min((struct.dtype for it in (a, b) for struct in it.shapes.values()), key=lambda it: it.itemsize)
        count = sum(not difference.equal_rounded for difference in found)
        report.notes.append(f"{count} of {len(found)} tensors differ bit by bit; within the rounding of {narrow}")


def _logits(
    report: Report,
    a: Weights,
    b: Weights,
    tokens_NT: np.ndarray,
    limits: Limits,
    ks: tuple[int, ...],
    scale_limit: bool,
) -> None:
    forward_a, report.a["logits_from"] = _forward(report, a)
    logits_a = [forward_a.logits(tokens_T) for tokens_T in tokens_NT]
    del forward_a
    forward_b, report.b["logits_from"] = _forward(report, b)
    difference = LogitDifference(ks)
    for tokens_T, logits_TV in zip(tokens_NT, logits_a, strict=True):
        difference.add(logits_TV, forward_b.logits(tokens_T))
    report.logits = {
        "kl_mean": difference.kl_mean,
        "kl_max": difference.kl_max,
        "max_abs": difference.max_abs,
        "spread": difference.spread,
        "overlap": {str(k): difference.overlap(k) for k in ks},
    }
    if scale_limit:
        limits = limits.scaled(difference.spread)
        report.limits = asdict(limits)
    report.not_finite = [it.place for it, finite in zip((a, b), difference.finite, strict=True) if not finite]
    if report.not_finite:
        report.failures.append(f"logits are not finite in {' and '.join(dict.fromkeys(report.not_finite))}")
    else:
        _judge(report, difference, limits, a.model.vocab_size)
    if report.failures and not report.rounding_only and any(difference.finite):
        worst_T = tokens_NT[difference.worst_prompt]
        residuals_b = forward_b.residuals(worst_T)
        del forward_b
        errors = stage_errors(_forward(report, a)[0].residuals(worst_T), residuals_b)
        stage = first_over(errors, limits.stage)
        report.first_difference = {"stage": stage, "prompt": difference.worst_prompt, "relative_errors": errors}


def _judge(report: Report, difference: LogitDifference, limits: Limits, vocab_size: int) -> None:
    overlap = difference.overlap(JUDGED_K)
    for what, value, limit in (
        ("largest KL", difference.kl_max, limits.kl_max),
        ("mean KL", difference.kl_mean, limits.kl_mean),
    ):
        if limit is not None and not value <= limit:
            report.failures.append(f"{what}: {value:.3g}, over {limit:.3g}")
    if limits.overlap is not None and not overlap >= min(limits.overlap, vocab_size):
        report.failures.append(f"shared of the ten likeliest tokens: {overlap:.3g}, under {limits.overlap:.3g}")
    if limits.logits is not None and not difference.max_abs <= limits.logits:
        report.rounding_only = not report.failures and report.tensors["equal"] == report.tensors["count"]
        why = ", of the size of rounding: all tensors are equal, KL is within its limit" if report.rounding_only else ""
        report.failures.append(
            f"largest difference of two logits: {difference.max_abs:.3g}, over {limits.logits:.3g}{why}"
        )


def _forward(report: Report, weights: Weights) -> tuple[Forward, str]:
    """The implementation that stands for one side, and what it is called."""
    if not isinstance(weights, HFWeights):
        return Own(weights), "olmo_hydra"
    obstacle = _obstacle(weights)
    if obstacle is None:
        return reference.Reference(weights.folder), f"transformers {reference.version()}"
    note = f"{obstacle}; the logits of {weights.place} are those of our own forward"
    if note not in report.notes:
        report.notes.append(note)
    return Own(weights), "olmo_hydra"


def _obstacle(weights: HFWeights) -> str | None:
    """Why `transformers` cannot say what this folder's logits should be, if it cannot."""
    version = reference.version()
    if version is None:
        return "a transformers that knows Olmo 3 is not installed (pip install -e '.[hf]')"
    has_both = Attention.sliding in weights.model.window_pattern and weights.model.yarn_factor
    if has_both and reference.yarn_on_sliding_layers():
        return (
            f"transformers {version} applies YaRN to sliding layers too ({reference.ISSUE}); in Olmo 3 (the paper, "
            "OLMo-core) it belongs to full-attention layers only"
        )
    if not reference.reads_rope(weights.content, weights.model):
        return (
            f"transformers {version} does not read RoPE from this config.json as was meant: releases from 5.13 on take "
            "rope_parameters with an entry for each kind of layer, those before rope_theta and rope_scaling "
            "(convert to-hf writes both)"
        )
    return None


def _about_windows(report: Report, a: Weights) -> None:
    if Attention.sliding in layer_kinds(a.model) and report.length <= a.model.window:
        report.notes.append(
            f"no prompt is longer than the window of {a.model.window}, so that windows were not compared; "
            f"--prompts 1 --length {2 * a.model.window} compares them"
        )


def _side(weights: Weights) -> dict[str, str]:
    dtypes = sorted({str(np.dtype(struct.dtype)) for struct in weights.shapes.values()})
    return {"place": weights.place, "dtype": " and ".join(dtypes)}


def _check(a: Weights, b: Weights, counts: dict[str, int], asked: dict[str, float | None]) -> None:
    differences = differing_shapes(a.model, b.model)
    if differences:
        raise RequestError(
            f"{a.place} and {b.place} are models of different shapes: {'; '.join(differences)}",
            where=b.place,
            instead="two places of one model",
        )
    for key, count in counts.items():
        require(count >= 1, "must be at least 1", key=key, value=count)
    for key, limit in asked.items():
        require(limit is None or limit >= 0, "must be a number from 0 up", key=key, value=limit)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
