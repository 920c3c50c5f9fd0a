"""How parameters are named, stacked and turned: in ours under other window patterns, in Hugging Face's Olmo 3."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from olmo_hydra.config.model import ModelConfig

# Ours within a block -> theirs within a layer. Their matrices are outputs x inputs, ours inputs x outputs.
LAYER = {
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "mlp_norm.weight": "post_feedforward_layernorm.weight",
}
AROUND = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
TABLES = ("embedding.weight", "head.weight")  # with a row or a column for each id


@dataclass(frozen=True)
class Counterpart:
    """What one parameter of ours is on the other side.

    Attributes:
      tensors: Their names, along our leading axis; one where there is no such axis.
      stacked: Whether our parameter has that axis.
      transposed: Whether their tensors are our matrices transposed.
    """

    tensors: tuple[str, ...]
    stacked: bool
    transposed: bool

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each of their tensors, for the shape of ours."""
        inner = ours[1:] if self.stacked else ours
        return inner[::-1] if self.transposed else inner


def counterparts(model: ModelConfig, shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Counterpart]:
    """The counterpart of each of our parameters, by our names, in the order of `shapes`."""
    return {name: _counterpart(model, name, len(struct.shape)) for name, struct in shapes.items()}


def in_layout(read: Callable[[str], np.ndarray], name: str, stored: ModelConfig, model: ModelConfig) -> np.ndarray:
    """The parameter that `model` calls `name`, stacked by its window pattern, from where it is stacked by another one.

    Args:
      read: A parameter by its name in the model `stored`, or something of the same shape (a moment).
      name: The parameter.
      stored: The model whose layout `read` has; of as many layers.
      model: The model whose layout is wanted.
    """
    period, other = len(model.window_pattern), len(stored.window_pattern)
    if period == other or not name.startswith("blocks."):
        return read(name)
    _, position, inner = name.split(".", 2)
    layers = range(int(position), model.n_layers, period)
    stacks = {at: read(f"blocks.{at}.{inner}") for at in {layer % other for layer in layers}}
    return np.stack([stacks[layer % other][layer // other] for layer in layers])


def _counterpart(model: ModelConfig, name: str, dims: int) -> Counterpart:
    if name in AROUND:
        return Counterpart((AROUND[name],), stacked=False, transposed=name == "head.weight")
    _, position, inner = name.split(".", 2)
    layers = range(int(position), model.n_layers, len(model.window_pattern))
    tensors = tuple(f"model.layers.{layer}.{LAYER[inner]}" for layer in layers)
    return Counterpart(tensors, stacked=True, transposed=dims == 3)
