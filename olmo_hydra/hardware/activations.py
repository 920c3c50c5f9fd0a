"""Bytes of an update besides the state, by part, from the config alone. The compiler packs them its own way."""

from olmo_hydra.config.hardware import AttentionKernel
from olmo_hydra.config.model import Attention
from olmo_hydra.config.remat import Point, Remat
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.flops import causal_pairs
from olmo_hydra.hardware.memory import others_keys_bytes, params_per_device, state_bytes_per_device, width_shards


def activation_bytes_per_device(config: Config) -> dict[str, int]:
    """What lies on one device at the fullest moment of an update, the beginning of the backward pass.

    `kept by layers` is what the remat policy keeps of all layers, `a layer at work` all activations of one and their
    gradients, `logits` those of a chunk with their gradient, `head` its whole weight and that weight's gradient, `layer
    weights` a layer's gathered, and the next one's, `keys of others` those of other devices along `context`,
    `gradients` the sum over micro-batches besides those of one.
    """
    model, hardware = config.model, config.hardware
    size = model.compute_dtype.size
    tokens = tokens_at_once(config)
    chunk = min(hardware.loss_chunk or tokens, tokens)
    vocabulary = model.padded_vocab // hardware.mesh.tensor
    sums = 2 if hardware.accumulation(config.train.global_batch) > 1 else 1
    layer_params = (model.num_params - model.num_norm_params - 2 * model.d_model * model.padded_vocab) / model.n_layers
    gathered = 2 if width_shards(config) > 1 else 1
    of_others = max(others_keys_bytes(config, kind) for kind in model.window_pattern)
    return {
        "kept by layers": _kept(config, tokens),
        "a layer at work": 2 * max(_of_layer(config, tokens, kind) for kind in model.window_pattern),
        **({"keys of others": of_others} if of_others else {}),
        "layer weights": int(gathered * layer_params / hardware.mesh.tensor * size),
        "head": model.d_model * vocabulary * (size + 4),
        "logits": chunk * vocabulary * (2 * 4 + size),
        "gradients": sums * 4 * params_per_device(config),
    }


def needed_by_part(config: Config) -> dict[str, int]:
    """The state and what lies beside it, of one device at the fullest moment."""
    return {"parameters and moments": state_bytes_per_device(config), **activation_bytes_per_device(config)}


def tokens_at_once(config: Config) -> int:
    """Tokens of a micro-batch on one device."""
    instances = config.hardware.instances_at_once(config.train.global_batch)
    return instances * config.data.seq_len // config.hardware.mesh.context


def _kept(config: Config, tokens: int) -> int:
    """Of all layers: their inputs, and what the policy names."""
    model, hardware = config.model, config.hardware
    if hardware.remat is Remat.none:
        of_a_period = sum(_of_layer(config, tokens, kind) for kind in model.window_pattern)
        return model.n_layers // len(model.window_pattern) * of_a_period
    widths = _widths(config)
    kept = model.d_model + sum(widths[point] for point in hardware.remat.kept - hardware.kept_on_host)
    return model.n_layers * tokens * kept * model.compute_dtype.size


def host_bytes_per_device(config: Config) -> int:
    """What lies in the memory of a device's host from the forward to the backward pass (`hardware.offload`)."""
    model, widths = config.model, _widths(config)
    kept = sum(widths[point] for point in config.hardware.kept_on_host)
    return model.n_layers * tokens_at_once(config) * kept * model.compute_dtype.size


def _of_layer(config: Config, tokens: int, kind: Attention) -> int:
    """Everything that the gradient of a layer of a kind may need: its points, what lies between them, and softmax
    weights if kept."""
    model, hardware = config.model, config.hardware
    assert model.n_heads is not None
    widths = _widths(config)
    between = model.d_model  # after attention
    between += 2 * (widths[Point.q] + widths[Point.k])  # normalised, and rotated
    between += widths[Point.gate]  # its product with `up`
    found = tokens * (model.d_model + sum(widths.values()) + between) * model.compute_dtype.size
    if hardware.attention is AttentionKernel.xla:
        window = model.window if kind is Attention.sliding else None
        pairs = causal_pairs(config.data.seq_len, window) * tokens // config.data.seq_len
        found += 4 * pairs * model.n_heads // hardware.mesh.tensor
    return found


def _widths(config: Config) -> dict[Point, int]:
    """Of each point, on one device."""
    model, tensor = config.model, config.hardware.mesh.tensor
    assert model.n_heads is not None and model.n_kv_heads is not None
    heads, kv_heads = (count * model.head_dim // tensor for count in (model.n_heads, model.n_kv_heads))
    hidden = model.d_ff // tensor
    narrow = {Point.q: heads, Point.k: kv_heads, Point.v: kv_heads, Point.context: heads, Point.out: model.d_model}
    return narrow | {Point.gate: hidden, Point.up: hidden, Point.down: model.d_model}
