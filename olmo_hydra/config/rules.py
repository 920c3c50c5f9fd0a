"""Rules between groups, and the one place where derived values are filled and checks run."""

import dataclasses
import math
from typing import Any

from olmo_hydra.config import tokenizers
from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.hardware import AttentionKernel
from olmo_hydra.config.root import Config


def apply(config: Config) -> Config:
    """Fills every derived value of `config` in place, then checks each group and the rules between them.

    Raises:
      RequestError: The first rule that is broken.
    """
    _check_finite(config, prefix="")
    config.train.check()
    config.data.derive(config.train.seed)
    config.data.check()
    config.train.derive(config.data.seq_len)
    assert config.train.steps is not None
    config.model.derive()
    config.schedule.derive(config.train.steps)
    config.hardware.derive()

    config.model.check()
    config.optim.check()
    config.schedule.check(config.train.steps)
    config.init.check()
    config.hardware.check(config.train.global_batch)
    config.eval.check()
    config.checkpoint.check()
    config.tracking.check()
    config.run.check()

    require(
        config.data.seq_len <= config.model.max_seq_len,
        f"is longer than the model's model.max_seq_len={config.model.max_seq_len}",
        key="data.seq_len",
        value=config.data.seq_len,
        instead=f"data.seq_len={config.model.max_seq_len}, or a larger model.max_seq_len",
    )
    beyond = [step for step in config.checkpoint.fixed_steps if step > config.train.steps]
    require(
        not beyond,
        f"names updates that a run of train.steps={config.train.steps} never makes: {', '.join(map(str, beyond))}",
        key="checkpoint.fixed_steps",
        value=config.checkpoint.fixed_steps,
        instead="numbers of updates up to train.steps, or a longer run",
    )
    ids = tokenizers.vocab_size(config.data.tokenizer)
    require(
        ids is None or ids <= config.model.vocab_size,
        f"is smaller than the {ids} tokens of data.tokenizer={config.data.tokenizer}",
        key="model.vocab_size",
        value=config.model.vocab_size,
        instead=f"model.vocab_size={ids}",
    )
    _check_tensor(config)
    if config.hardware.mesh.context > 1:
        _check_context(config)
    if config.hardware.attention is AttentionKernel.cudnn:
        _check_cudnn(config)
    return config


def _check_tensor(config: Config) -> None:
    """Every device along `tensor` has whole heads, and as much of each matrix as the others."""
    model, tensor = config.model, config.hardware.mesh.tensor
    assert model.n_heads is not None and model.n_kv_heads is not None
    sizes = {
        "model.n_heads": model.n_heads,
        "model.n_kv_heads": model.n_kv_heads,
        "model.d_ff": model.d_ff,
        "model.vocab_size in multiples of model.vocab_multiple": model.padded_vocab,
    }
    undivided = [f"{name} ({size})" for name, size in sizes.items() if size % tensor]
    require(
        not undivided,
        f"does not divide {', '.join(undivided)}",
        key="hardware.mesh.tensor",
        value=tensor,
        instead=f"hardware.mesh.tensor={math.gcd(tensor, *sizes.values())} hardware.mesh.fsdp=-1",
    )


def _check_context(config: Config) -> None:
    """Every device along `context` has two equal parts of an instance (`mesh.balanced_parts`)."""
    hardware, seq_len = config.hardware, config.data.seq_len
    parts = 2 * hardware.mesh.context
    lower = seq_len // parts * parts
    require(
        seq_len % parts == 0,
        f"does not divide into two parts for each device along hardware.mesh.context={hardware.mesh.context}",
        key="data.seq_len",
        value=seq_len,
        instead="data.seq_len=" + (f"{lower} or {lower + parts}" if lower else str(parts)) + ", or a smaller context",
    )
    require(
        hardware.attention is not AttentionKernel.cudnn,
        "cannot divide sequences for hardware.attention=cudnn, whose kernel takes as many keys as queries",
        key="hardware.mesh.context",
        value=hardware.mesh.context,
        instead="hardware.mesh.context=1 hardware.mesh.fsdp=-1, or hardware.attention=xla",
    )


def _check_cudnn(config: Config) -> None:
    """What cuDNN's fused attention takes, by the checks of JAX's call (`jax.nn.dot_product_attention`)."""
    model, data = config.model, config.data
    require(
        model.compute_dtype is DType.bfloat16,
        "must be bfloat16 for hardware.attention=cudnn",
        key="model.compute_dtype",
        value=model.compute_dtype,
        instead="model.compute_dtype=bfloat16, or hardware.attention=xla",
    )
    require(
        model.head_dim % 8 == 0 and model.head_dim <= 256,
        "must be a multiple of 8 and at most 256 for hardware.attention=cudnn",
        key="model.head_dim",
        value=model.head_dim,
        instead="hardware.attention=xla",
    )
    require(
        data.seq_len % 2 == 0 or not data.document_mask,
        "must be even for hardware.attention=cudnn with data.document_mask=true",
        key="data.seq_len",
        value=data.seq_len,
        instead=f"data.seq_len={data.seq_len + 1}",
    )


def _check_finite(node: Any, prefix: str) -> None:
    for field in dataclasses.fields(node):
        key, value = prefix + field.name, getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            _check_finite(value, f"{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise RequestError("must be a finite number", key=key, value=value)
