"""OLMo-core's transformer, its blocks compiled as it does itself."""

import re
from importlib.metadata import version
from typing import Any

import torch
from olmo_core.nn.attention import AttentionBackendName, SlidingWindowAttentionConfig
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.transformer import Transformer, TransformerBlockType, TransformerConfig

from benchmarks.peers.adapters.torch_step import DEVICE, adamw, load_weights, updates
from benchmarks.peers.worker import Loaded

# Its names -> Hugging Face's.
NAMES = {
    r"^embeddings": "model.embed_tokens",
    r"^lm_head\.norm": "model.norm",
    r"^lm_head\.w_out": "lm_head",
    r"^blocks": "model.layers",
    r"attention\.w_out": "self_attn.o_proj",
    r"attention\.w_(.)": r"self_attn.\1_proj",
    r"attention\.(.)_norm": r"self_attn.\1_norm",
    r"\.attention_norm": ".post_attention_layernorm",
    r"feed_forward\.w1": "mlp.gate_proj",
    r"feed_forward\.w2": "mlp.down_proj",
    r"feed_forward\.w3": "mlp.up_proj",
    r"feed_forward_norm": "post_feedforward_layernorm",
}


def load(job: dict[str, Any]) -> Loaded:
    model = build(job)
    load_weights(job, model, theirs)
    model.apply_compile()

    def loss_of(tokens_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        return model(tokens_BT, labels=labels_BT, return_logits=False).loss

    optimizer = adamw(model, job["optim"], undecayed=["embeddings.weight"])
    versions = {name: version(name) for name in ("torch", "ai2-olmo-core")}
    return Loaded(updates(job, model, loss_of, optimizer), model.num_params, versions)


def build(job: dict[str, Any]) -> Transformer:
    """The model of a job, with torch's scaled-dot-product attention."""
    model = job["model"]
    windows = [model["window"] if kind == "sliding" else -1 for kind in model["pattern"]]
    config = TransformerConfig.llama_like(
        d_model=model["d_model"],
        vocab_size=model["vocab_size"],
        n_layers=model["n_layers"],
        n_heads=model["n_heads"],
        head_dim=model["head_dim"],
        qk_norm=True,
        layer_norm_eps=model["norm_eps"],
        rope_theta=int(model["rope_theta"]),
        block_name=TransformerBlockType.reordered_norm,
        feed_forward=FeedForwardConfig(hidden_size=model["d_ff"], bias=False),
        attn_backend=AttentionBackendName.torch,
        sliding_window=SlidingWindowAttentionConfig(
            pattern=windows, force_full_attention_on_first_layer=False, force_full_attention_on_last_layer=False
        ),
    )
    made = config.build(init_device=DEVICE[job["device"]])
    if job["remat"] == "full":
        made.apply_activation_checkpointing("full")
    return made.train()


def theirs(name: str) -> str:
    """Hugging Face's name of one of its parameters."""
    for pattern, name_there in NAMES.items():
        name = re.sub(pattern, name_there, name)
    return name
