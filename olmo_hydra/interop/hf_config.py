"""`config.json` of Hugging Face's Olmo 3 and our `ModelConfig`, both ways.

Written for transformers 4.57, which reads `rope_theta` and `rope_scaling`, and for 5.x, which reads `rope_parameters`
with an entry for each kind of layer. What its code for Olmo 3 would read and our model cannot do is refused; what that
code never reads is passed over.
"""

from typing import Any

from olmo_hydra.config.errors import require, show
from olmo_hydra.config.model import Attention, BlockNorm, ModelConfig, QKNorm
from olmo_hydra.interop.hf_rope import FULL, SLIDING, read_rope, write_rope
from olmo_hydra.interop.model_node import olmo3
from olmo_hydra.interop.values import Values

ARCHITECTURE = "Olmo3ForCausalLM"
KINDS = {Attention.sliding: SLIDING, Attention.full: FULL}
LARGEST_HEAD = 2**16  # the frequencies of its pairs are computed before the tensors are looked at
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")  # what such a file says of the tokenizer

# Ours, theirs. They have to be in the file: releases disagree about what holds where they are not.
SHAPE = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
}
# What only one value of can be read, if there is one.
FIXED = {
    "architectures": [ARCHITECTURE],
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "is_causal": True,
    "partial_rotary_factor": 1.0,
}


def to_hf(model: ModelConfig, dtype: str, special: dict[str, Any]) -> dict[str, Any]:
    """The content of `config.json`.

    Args:
      model: Derived and checked.
      dtype: Of the tensors in the files.
      special: Values for `SPECIAL`, where there are any.

    Raises:
      RequestError: Hugging Face's Olmo 3 has no word for something that the model does.
    """
    require(
        model.qk_norm is QKNorm.projection,
        "Hugging Face's Olmo 3 normalises queries and keys over the whole projection, and in no other way",
        key="model.qk_norm",
        value=model.qk_norm,
    )
    require(
        model.block_norm is BlockNorm.reordered,
        "Hugging Face's Olmo 3 normalises what a sublayer adds, and nothing else",
        key="model.block_norm",
        value=model.block_norm,
    )
    periods = model.n_layers // len(model.window_pattern)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "olmo3",
        **{theirs: getattr(model, ours) for ours, theirs in SHAPE.items()},
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": [KINDS[kind] for kind in model.window_pattern] * periods,
        "sliding_window": model.window,
        "rms_norm_eps": model.norm_eps,
        **write_rope(model),
        "initializer_range": model.init_std,
        "tie_word_embeddings": False,
        "use_cache": True,
        **{key: special.get(key) for key in SPECIAL},
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def from_hf(content: dict[str, Any], name: str, where: str) -> ModelConfig:
    """The model that a `config.json` describes, with tables of exactly its rows.

    What such a file does not say (where initial values are cut, ...) is as in Olmo 3 7B.

    Args:
      content: The file's.
      name: What the model is to be called.
      where: The file, for messages.

    Raises:
      RequestError: A value is missing, or asks for what our model cannot do. Names key and value.
    """
    file = Values(content, where)
    file.only("model_type", "olmo3")
    for key, value in FIXED.items():
        if file.get(key) is not None:
            file.only(key, value)
    if file.get("quantization_config") is not None:
        raise file.wrong("quantization_config", "quantised weights are not read")
    shape = {ours: file.whole(theirs) for ours, theirs in SHAPE.items()}
    if file.get("head_dim") is not None:
        shape["head_dim"] = file.whole("head_dim")
    elif shape["d_model"] % shape["n_heads"]:
        raise file.wrong("num_attention_heads", f"does not divide hidden_size={shape['d_model']}")
    else:
        shape["head_dim"] = shape["d_model"] // shape["n_heads"]
    says = "num_attention_heads" if file.get("head_dim") is None else "head_dim"
    if shape["head_dim"] % 2:
        raise file.wrong(says, f"makes heads of {shape['head_dim']}, which is odd, and RoPE rotates pairs")
    if shape["head_dim"] > LARGEST_HEAD:
        raise file.wrong(says, f"makes heads of {shape['head_dim']}, more than {LARGEST_HEAD}")
    shape["n_kv_heads"] = shape["n_heads"]
    if file.get("num_key_value_heads") is not None:
        shape["n_kv_heads"] = file.whole("num_key_value_heads")
        if shape["n_heads"] % shape["n_kv_heads"]:
            raise file.wrong("num_key_value_heads", f"does not divide num_attention_heads={shape['n_heads']}")
    rope = read_rope(content, shape["head_dim"], where)
    stretch = {}
    if rope.yarn is not None:
        stretch = {"factor": rope.yarn.factor, "original_len": rope.yarn.original_len,
                   "beta_fast": rope.yarn.beta_fast, "beta_slow": rope.yarn.beta_slow}  # fmt: skip
    precision = "bfloat16" if dtype_named(content) == "bfloat16" else "float32"
    return olmo3(
        {
            **shape,
            "name": name,
            "vocab_multiple": 1,
            **_windows(file, shape["n_layers"], shape["max_seq_len"]),
            "rope_theta": rope.theta,
            **{f"yarn_{key}": value for key, value in stretch.items()},
            "norm_eps": file.number("rms_norm_eps"),
            "init_std": file.number("initializer_range", 0.02),
            "param_dtype": precision,
            "compute_dtype": precision,
        },
        where,
    )


def dtype_named(content: dict[str, Any]) -> str:
    """The dtype of the tensors as a `config.json` names it; newer releases call the key `dtype`."""
    return str(content.get("dtype") or content.get("torch_dtype")).removeprefix("torch.")


def _windows(file: Values, n_layers: int, max_seq_len: int) -> dict[str, Any]:
    """`window` and the shortest `window_pattern` that repeats to the layers of the file."""
    layers = file.get("layer_types")
    if layers is None:  # every fourth layer, in all releases
        layers = [FULL if layer % 4 == 3 else SLIDING for layer in range(n_layers)]
    if not isinstance(layers, list) or len(layers) != n_layers:
        raise file.wrong("layer_types", f"does not name the kind of each of {n_layers} layers")
    kinds = {theirs: ours.value for ours, theirs in KINDS.items()}
    for kind in layers:
        if not isinstance(kind, str) or kind not in kinds:
            raise file.wrong("layer_types", f"has {show(kind)}, and our layers are {' or '.join(kinds)}")
    period = next(p for p in range(1, n_layers + 1) if n_layers % p == 0 and layers == layers[:p] * (n_layers // p))
    window = file.whole("sliding_window") if SLIDING in layers else max_seq_len
    return {"window": window, "window_pattern": [kinds[kind] for kind in layers[:period]]}
