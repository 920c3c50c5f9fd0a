"""Whether two sets of weights belong to the same model, and their tensors side by side."""

from collections.abc import Iterator

import numpy as np

from olmo_hydra.config.errors import show
from olmo_hydra.config.model import Attention, ModelConfig
from olmo_hydra.interop.names import in_layout
from olmo_hydra.interop.weights import Weights

SHAPE = ("d_model", "n_layers", "head_dim", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "qk_norm")
MEANING = ("rope_theta", "norm_eps", "block_norm", "yarn_factor")  # what else the logits depend on
YARN = ("yarn_original_len", "yarn_beta_fast", "yarn_beta_slow")


def differing_shapes(a: ModelConfig, b: ModelConfig) -> list[str]:
    """A sentence for every field by which the tensors of the two have different shapes."""
    return differences(a, b, SHAPE)


def differing_meaning(a: ModelConfig, b: ModelConfig) -> list[str]:
    """A sentence for every field by which equal tensors give different logits."""
    found = differences(a, b, MEANING + (YARN if a.yarn_factor and b.yarn_factor else ()))
    kinds_a, kinds_b = layer_kinds(a), layer_kinds(b)
    found += [
        f"layer {layer} is {show(kind_a)} and {show(kind_b)}"
        for layer, (kind_a, kind_b) in enumerate(zip(kinds_a, kinds_b, strict=False))
        if kind_a is not kind_b
    ]
    if Attention.sliding in kinds_a and Attention.sliding in kinds_b:
        found += differences(a, b, ("window",))
    return found


def layer_kinds(cfg: ModelConfig) -> list[Attention]:
    """How far back each layer attends."""
    return [cfg.window_pattern[layer % len(cfg.window_pattern)] for layer in range(cfg.n_layers)]


def pairs(a: Weights, b: Weights) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(name, of_a, of_b) of every tensor, one a layer (`layer 5: mlp.up.weight`), without rows that only pad.

    Two models of equal shapes are expected. One stacked parameter of each is in memory at a time.
    """
    period = len(a.model.window_pattern)
    for name in a.shapes:
        tensor_a, tensor_b = a.read(name), in_layout(b.read, name, b.model, a.model)
        if name.startswith("blocks."):
            _, position, inner = name.split(".", 2)
            for index, (layer_a, layer_b) in enumerate(zip(tensor_a, tensor_b, strict=True)):
                yield f"layer {int(position) + index * period}: {inner}", layer_a, layer_b
        else:
            yield name, _without_padding(name, tensor_a, a), _without_padding(name, tensor_b, b)


def _without_padding(name: str, tensor: np.ndarray, weights: Weights) -> np.ndarray:
    size = weights.model.vocab_size
    return {"embedding.weight": tensor[:size], "head.weight": tensor[..., :size]}.get(name, tensor)


def differences(a: ModelConfig, b: ModelConfig, fields: tuple[str, ...]) -> list[str]:
    """A sentence for every one of the fields in which the two differ."""
    return [
        f"{field} is {show(getattr(a, field))} and {show(getattr(b, field))}"
        for field in fields
        if getattr(a, field) != getattr(b, field)
    ]
