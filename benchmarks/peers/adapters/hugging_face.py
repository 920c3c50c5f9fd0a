"""Hugging Face's Olmo 3 under torch.compile."""

from importlib.metadata import version
from typing import Any

import torch
from transformers import Olmo3Config, Olmo3ForCausalLM

from benchmarks.peers.adapters.torch_step import DEVICE, adamw, load_weights, updates
from benchmarks.peers.worker import Loaded


def load(job: dict[str, Any]) -> Loaded:
    model = build(job)
    load_weights(job, model)
    run = torch.compile(model)

    def loss_of(tokens_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        # Labels are shifted already, which it has to be told.
        return run(input_ids=tokens_BT, labels=labels_BT, shift_labels=labels_BT, use_cache=False).loss

    optimizer = adamw(model, job["optim"], undecayed=["model.embed_tokens.weight"])
    return Loaded(
        updates(job, model, loss_of, optimizer),
        model.num_parameters(),
        {name: version(name) for name in ("torch", "transformers")},
    )


def build(job: dict[str, Any]) -> Olmo3ForCausalLM:
    """The model of a job with scaled-dot-product attention, the default."""
    model = job["model"]
    period = len(model["pattern"])
    config = Olmo3Config(
        vocab_size=model["vocab_size"],
        hidden_size=model["d_model"],
        intermediate_size=model["d_ff"],
        num_hidden_layers=model["n_layers"],
        num_attention_heads=model["n_heads"],
        num_key_value_heads=model["n_heads"],
        head_dim=model["head_dim"],
        max_position_embeddings=job["seq_len"],
        rms_norm_eps=model["norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": model["rope_theta"]},
        sliding_window=model["window"],
        layer_types=[f"{model['pattern'][layer % period]}_attention" for layer in range(model["n_layers"])],
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(DEVICE[job["device"]]):
        made = Olmo3ForCausalLM(config)
    if job["remat"] == "full":
        made.gradient_checkpointing_enable()
    return made.train()
