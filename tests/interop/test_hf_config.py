"""`config.json` both ways: published values, random models, and what is refused."""

import dataclasses
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.model import Attention, BlockNorm, DType, QKNorm
from olmo_hydra.interop.hf_config import from_hf, to_hf
from olmo_hydra.interop.model_node import olmo3

FULL, SLIDING = "full_attention", "sliding_attention"
# Olmo 3 7B after stage 3, in the form of transformers 4.57; values of allenai/Olmo-3-1025-7B.
PUBLISHED = {
    **{"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "hidden_act": "silu", "torch_dtype": "bfloat16"},
    **{"attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False, "use_cache": True},
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 100278},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6},
    **{"initializer_range": 0.02, "sliding_window": 4096, "rope_theta": 500000, "eos_token_id": 100257},
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 8,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
                     "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0},
}  # fmt: skip
NEWER = {
    **{key: value for key, value in PUBLISHED.items() if not key.startswith(("rope", "torch"))},
    "dtype": "bfloat16",
    "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 5e5},
                        FULL: {**PUBLISHED["rope_scaling"], "rope_theta": 5e5}},
}  # fmt: skip


def read(content):
    return from_hf(json.loads(json.dumps(content)), "olmo", "config.json")


@pytest.mark.parametrize("content", [PUBLISHED, NEWER])
def test_the_published_model(content) -> None:
    assert read(content) == olmo3(
        {
            **{"name": "olmo", "max_seq_len": 65536, "vocab_multiple": 1, "yarn_factor": 8.0},
            **{"param_dtype": "bfloat16", "compute_dtype": "bfloat16"},
        },
        "here",
    )


def test_what_is_written_holds_both_forms() -> None:
    written = to_hf(read(PUBLISHED), "bfloat16", {"eos_token_id": 100257})
    assert PUBLISHED.items() <= written.items()
    assert NEWER.items() <= written.items()


@st.composite
def models(draw):
    number = lambda top: draw(st.integers(1, top))  # noqa: E731
    pattern = draw(st.lists(st.sampled_from(["sliding", "full"]), min_size=1, max_size=4))
    kv_heads = number(3)
    yarn = draw(st.booleans())
    fields = {
        **{"d_model": number(64), "head_dim": 2 * number(16), "n_kv_heads": kv_heads, "n_heads": kv_heads * number(3)},
        **{"window_pattern": pattern, "n_layers": len(pattern) * number(3), "d_ff": number(99), "window": number(9)},
        **{"vocab_size": number(99), "max_seq_len": number(99), "rope_theta": draw(st.sampled_from([1e4, 5e5]))},
        **{"norm_eps": draw(st.sampled_from([1e-6, 1e-5])), "vocab_multiple": 1, "compute_dtype": "float32"},
        **({"yarn_factor": draw(st.floats(1, 64)), "yarn_original_len": number(20)} if yarn else {}),
    }
    return olmo3(fields, "here")


@given(models())
def test_a_round_trip_keeps_the_model(model) -> None:
    try:
        written = to_hf(model, "float32", {})
    except RequestError as refused:  # short sequences, over which hardly a pair turns slowly enough
        assume(refused.key != "model.yarn_beta_slow")
        raise
    again = read(written)
    layers = model.window_pattern * (model.n_layers // len(model.window_pattern))
    assert again.window_pattern * (again.n_layers // len(again.window_pattern)) == layers
    same = {"name": model.name, "window_pattern": model.window_pattern}
    if Attention.sliding not in layers:
        same["window"] = model.window  # no layer has one
    assert dataclasses.replace(again, **same) == model


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("qk_norm", QKNorm.head, "model.qk_norm=head"),
        ("qk_norm", QKNorm.none, "model.qk_norm=none"),
        ("block_norm", BlockNorm.pre, "model.block_norm=pre"),
        ("yarn_beta_slow", 1e-7, "model.yarn_beta_slow=1e-07"),  # the ramp ends past the last pair
    ],
)
def test_what_the_format_has_no_word_for(field, value, named) -> None:
    with pytest.raises(RequestError, match=named):
        to_hf(dataclasses.replace(read(PUBLISHED), **{field: value}), "float32", {})


YARN = PUBLISHED["rope_scaling"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "olmo2"}, "model_type=olmo2"),
        ({"architectures": ["Olmo3ForSequenceClassification"]}, "architectures="),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=true"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": 4095}, "num_attention_heads=32"),
        ({"hidden_size": "4096"}, "hidden_size=4096: is no positive whole"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5: does not divide num_attention_heads=32"),
        ({"head_dim": 7}, "head_dim=7: makes heads of 7, which is odd"),
        ({"hidden_size": 4000, "num_attention_heads": 32}, "num_attention_heads=32: makes heads of 125, which is odd"),
        ({"head_dim": 2**31 - 2}, "head_dim=2147483646: makes heads of 2147483646, more than 65536"),
        ({"hidden_size": 2**30}, "num_attention_heads=32: makes heads of 33554432, more than 65536"),
        ({"intermediate_size": 10**19}, "intermediate_size=10000000000000000000: is larger than 2147483647"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps=1000"),
        ({"layer_types": [*[FULL] * 31, [FULL]]}, "has [full_attention]"),
        ({"layer_types": [*[FULL] * 31, {"kind": FULL}]}, "has {'kind'"),
        ({"vocab_size": None}, "vocab_size=null"),
        ({"rms_norm_eps": 0}, "rms_norm_eps=0"),
        ({"layer_types": [FULL] * 31}, "layer_types"),
        ({"layer_types": [*[FULL] * 31, "chunked_attention"]}, "has chunked_attention"),
        ({"sliding_window": None}, "sliding_window=null"),
        ({"rope_theta": None}, "rope_theta=null"),
        ({"rope_scaling": {**YARN, "attention_factor": 1.0}}, "rope_scaling.attention_factor=1.0"),
        ({"rope_scaling": {**YARN, "truncate": False}}, "rope_scaling.truncate=false"),
        ({"rope_scaling": {**YARN, "mscale": 1.0}}, "rope_scaling.mscale=1.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling.rope_type=linear"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type=dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_scaling.original_max_position_embeddings: is m"),
        ({"rope_scaling": {**YARN, "beta_slow": 1e-7}}, "rope_scaling.beta_slow=1e-07"),
        ({"rope_scaling": {**YARN, "beta_slow": 64}}, "rope_scaling.beta_fast=32.0: leaves"),
        ({"rope_scaling": {**YARN, "beta_fast": 1e308}}, "beta_fast=1e+308 or"),
        ({"rope_scaling": {**YARN, "beta_slow": 5e-324}}, "rope_scaling.beta_slow=5e-324"),
        ({"rope_scaling": {**YARN, "factor": 0.5}}, "rope_scaling.factor=0.5: is below 1"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 10**400}}, "max_position_embeddings=1000"),
        ({"rope_theta": 1}, "rope_theta=1.0: is not above 1"),
        ({"rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 0.5}}, "rope_parameters.rope_theta=0.5"),
        ({"rope_parameters": {**NEWER["rope_parameters"], FULL: {"rope_type": "default", "rope_theta": 5e5}}}, "yarn"),
        ({"rope_parameters": {**NEWER["rope_parameters"], SLIDING: {**YARN, "rope_theta": 5e5}}}, "sliding layers"),
        ({"rope_parameters": {**NEWER["rope_parameters"], SLIDING: {"rope_theta": 1e4}}}, "rope_theta=10000.0"),
    ],
)
def test_what_our_model_cannot_do(changes, named) -> None:
    with pytest.raises(RequestError) as refused:
        read({**PUBLISHED, **changes})
    assert named in str(refused.value)
    assert refused.value.where == "config.json"


@pytest.mark.parametrize("key", ["hidden_size", "max_position_embeddings", "rms_norm_eps", "rope_theta"])
def test_what_has_to_be_there(key) -> None:
    with pytest.raises(RequestError, match=f"{key}: is missing"):
        read({name: value for name, value in PUBLISHED.items() if name != key})


def test_what_may_be_absent() -> None:
    """Heads for keys, kinds of layers and dtypes have one meaning where they are absent, in all releases."""
    absent = ("num_key_value_heads", "layer_types", "torch_dtype", "architectures", "hidden_act", "use_cache")
    model = read({name: value for name, value in PUBLISHED.items() if name not in absent})
    assert model == dataclasses.replace(read(PUBLISHED), param_dtype=DType.float32, compute_dtype=DType.float32)
    one_for_all = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8192}
    assert read({**NEWER, "rope_parameters": one_for_all}) == read(NEWER)
