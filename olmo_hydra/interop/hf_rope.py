"""RoPE in a `config.json`, in both of its forms.

YaRN belongs to full-attention layers alone (the Olmo 3 paper, OLMo-core). The older form, `rope_scaling`, has no place
to say so, and what some releases of transformers made of it differs (huggingface/transformers#45945); it is read that
way. The newer one, `rope_parameters`, says it for each kind of layer.
"""

import math
from dataclasses import dataclass
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.interop.values import Values

FULL, SLIDING = "full_attention", "sliding_attention"
YARN_KEYS = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate")
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
            "attention_factor": attention_factor(yarn.factor),
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
        raise RequestError(" and ".join(f"{key} say {rope}" for key, rope in found.items()), where=where)
    return next(iter(found.values()))


def attention_factor(factor: float) -> float:
    """The length of the rotations that goes with a stretch (arXiv 2309.00071, equation 22)."""
    return 0.1 * math.log(factor) + 1


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
    if len({rope.theta for rope in ropes.values()}) > 1:
        raise parameters.within(SLIDING).wrong("rope_theta", f"is not that of {FULL}, and our model has one for all")
    return ropes.get(FULL) or ropes[SLIDING]


def _yarn(rope: Values, theta: float, head_dim: int) -> Yarn | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    for key in ABSENT:
        if rope.get(key) is not None:
            raise rope.wrong(key, "is a stretch of RoPE that our model does not know")
    if rope.get("partial_rotary_factor") is not None:
        rope.only("partial_rotary_factor", 1.0)
    if kind == "default":
        return None
    if kind != "yarn":
        raise rope.wrong("rope_type" if "rope_type" in rope.content else "type", "is neither default nor yarn")
    if rope.get("truncate") is not None:
        rope.only("truncate", True)
    yarn = Yarn(
        rope.number("factor"),
        rope.whole("original_max_position_embeddings"),
        rope.number("beta_fast", BETA_FAST),
        rope.number("beta_slow", BETA_SLOW),
    )
    expected = attention_factor(yarn.factor)
    if not math.isclose(rope.number("attention_factor", expected), expected, rel_tol=1e-6):
        raise rope.wrong("attention_factor", f"is not 0.1 ln({yarn.factor:g}) + 1 = {expected!r}, which ours always is")
    _same_ramp(yarn, theta, head_dim, f"{rope.prefix}beta_slow", rope.where)
    return yarn


def _same_ramp(yarn: Yarn, theta: float, head_dim: int, key: str, where: str | None) -> None:
    """Refuses a stretch that is not the same in both: transformers lets the ramp from kept to slowed pairs end past
    the last pair, where OLMo-core, and so ours, ends it there.
    """
    pairs = head_dim // 2

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(yarn.original_len / (2 * math.pi * times)) / math.log(theta)

    low, high = max(math.floor(pair_that_turns(yarn.beta_fast)), 0), math.ceil(pair_that_turns(yarn.beta_slow))
    ours, theirs = min(high, pairs - 1), min(high, head_dim - 1)
    theirs_width = theirs - low or 1e-3

    def slowed(pair: int, width: float) -> float:
        return min(max((pair - low) / width, 0.0), 1.0)

    if any(slowed(pair, max(ours - low, 1e-3)) != slowed(pair, theirs_width) for pair in range(pairs)):
        raise RequestError(
            f"too few pairs turn less often than that over {yarn.original_len} positions: there transformers and "
            "OLMo-core define YaRN differently",
            key=key,
            value=yarn.beta_slow,
            where=where,
        )
