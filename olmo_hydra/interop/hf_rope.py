"""RoPE in a `config.json`, in both of its forms.

YaRN belongs to full-attention layers alone (the Olmo 3 paper, OLMo-core). The older form, `rope_scaling`, has no place
to say so, and what some releases of transformers made of it differs (huggingface/transformers#45945); it is read that
way. The newer one, `rope_parameters`, says it for each kind of layer.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.interop.values import Values
from olmo_hydra.model import rope

FULL, SLIDING = "full_attention", "sliding_attention"
ABSENT = ("mscale", "mscale_all_dim", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor")
BETA_FAST, BETA_SLOW = 32.0, 1.0  # arXiv 2309.00071, section 3.2; what readers assume where a file is silent


@dataclass(frozen=True)
class Yarn:
    """How full-attention layers are stretched."""

    factor: float
    original_len: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Rope:
    """Base of the frequencies in all layers, and the stretch of full-attention layers, if any."""

    theta: float
    yarn: Yarn | None


def write_rope(model: ModelConfig) -> dict[str, Any]:
    """The keys of both forms. Raises RequestError where transformers would compute other frequencies."""
    theta = float(model.rope_theta)
    parameters: dict[str, Any] = {
        SLIDING: {"rope_type": "default", "rope_theta": theta},
        FULL: {"rope_type": "default", "rope_theta": theta},
    }
    scaling = None
    if model.yarn_factor is not None:
        yarn = Yarn(float(model.yarn_factor), model.yarn_original_len, model.yarn_beta_fast, model.yarn_beta_slow)
        _same_ramp(yarn, theta, model.head_dim, "model.yarn_beta_slow", None)
        scaling = {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_len,
            "beta_fast": float(yarn.beta_fast),
            "beta_slow": float(yarn.beta_slow),
            "attention_factor": rope.yarn_length(yarn.factor),
        }
        parameters[FULL] = {**scaling, "rope_theta": theta}
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": parameters}


def read_rope(content: dict[str, Any], head_dim: int, where: str) -> Rope:
    """What a `config.json` says of RoPE, in either form.

    Raises:
      RequestError: Neither form is there, they contradict each other, or our model cannot do what they say.
    """
    file = Values(content, where)
    found: dict[str, Rope] = {}
    if file.get("rope_parameters") is not None:
        found["rope_parameters"] = _newer(file.within("rope_parameters"), head_dim)
    if file.get("rope_theta") is not None or not found:
        theta = file.number("rope_theta")
        stretched = file.get("rope_scaling") is not None
        yarn = _yarn(file.within("rope_scaling"), theta, head_dim) if stretched else None
        found["rope_theta and rope_scaling"] = Rope(theta, yarn)
    if len(set(found.values())) > 1:
        raise RequestError(" and ".join(f"{key} say {said}" for key, said in found.items()), where=where)
    return next(iter(found.values()))


def _newer(parameters: Values, head_dim: int) -> Rope:
    """An object for each kind of layer; or one for all, as releases write it whose models have one kind."""
    if not {FULL, SLIDING} & parameters.content.keys():
        theta = parameters.number("rope_theta")
        return Rope(theta, _yarn(parameters, theta, head_dim))
    ropes = {}
    for kind in (FULL, SLIDING):
        if parameters.get(kind) is not None:
            layer = parameters.within(kind)
            theta = layer.number("rope_theta")
            ropes[kind] = Rope(theta, _yarn(layer, theta, head_dim))
    if SLIDING in ropes and ropes[SLIDING].yarn is not None:
        raise parameters.within(SLIDING).wrong("rope_type", "stretches sliding layers, which our model never does")
    if len({one.theta for one in ropes.values()}) > 1:
        raise parameters.within(SLIDING).wrong("rope_theta", f"is not that of {FULL}, and our model has one for all")
    return ropes.get(FULL) or ropes[SLIDING]


def _yarn(layer: Values, theta: float, head_dim: int) -> Yarn | None:
    kind = layer.get("rope_type") or layer.get("type") or "default"
    for key in ABSENT:
        if layer.get(key) is not None:
            raise layer.wrong(key, "is a stretch of RoPE that our model does not know")
    if layer.get("partial_rotary_factor") is not None:
        layer.only("partial_rotary_factor", 1.0)
    if kind == "default":
        return None
    if kind != "yarn":
        raise layer.wrong("rope_type" if "rope_type" in layer.content else "type", "is neither default nor yarn")
    if layer.get("truncate") is not None:
        layer.only("truncate", True)
    yarn = Yarn(
        layer.number("factor"),
        layer.whole("original_max_position_embeddings"),
        layer.number("beta_fast", BETA_FAST),
        layer.number("beta_slow", BETA_SLOW),
    )
    if theta <= 1:
        problem = "is not above 1, so that no pair turns more slowly than another for YaRN"
        key = f"{layer.prefix}rope_theta" if "rope_theta" in layer.content else "rope_theta"
        raise RequestError(problem, key=key, value=theta, where=layer.where)
    if yarn.factor < 1:
        raise layer.wrong("factor", "is below 1, and YaRN stretches")
    if yarn.beta_fast <= yarn.beta_slow:
        key = "beta_fast" if layer.get("beta_fast") is not None else "beta_slow"
        raise layer.wrong(key, f"leaves beta_fast={yarn.beta_fast:g} no larger than beta_slow={yarn.beta_slow:g}")
    expected = rope.yarn_length(yarn.factor)
    if not math.isclose(layer.number("attention_factor", expected), expected, rel_tol=1e-6):
        raise layer.wrong(
            "attention_factor", f"is not 0.1 ln({yarn.factor:g}) + 1 = {expected!r}, which ours always is"
        )
    _same_ramp(yarn, theta, head_dim, f"{layer.prefix}beta_slow", layer.where)
    return yarn


def _same_ramp(yarn: Yarn, theta: float, head_dim: int, key: str, where: str | None) -> None:
    """Refuses a stretch that is not the same in both: transformers lets the ramp from kept to slowed pairs end past
    the last pair, where OLMo-core, and so ours, ends it there.
    """
    pairs = head_dim // 2
    try:
        low, high = rope.yarn_ends(pairs, theta, yarn.original_len, yarn.beta_fast, yarn.beta_slow)
    except (OverflowError, ValueError):
        problem = f"beta_fast={yarn.beta_fast:g} or beta_slow={yarn.beta_slow:g} is beyond what a float can compute"
        raise RequestError(problem, key=key, value=yarn.beta_slow, where=where) from None
    ours, theirs = (rope.yarn_ramp(pairs, low, min(high, last)) for last in (pairs - 1, head_dim - 1))
    if high < low or not np.array_equal(ours, theirs):
        raise RequestError(
            f"too few pairs turn less often than that over {yarn.original_len} positions: there transformers and "
            "OLMo-core define YaRN differently",
            key=key,
            value=yarn.beta_slow,
            where=where,
        )
