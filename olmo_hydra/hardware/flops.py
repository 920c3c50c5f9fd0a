"""FLOPs of a training step, from the config alone."""

from olmo_hydra.config.model import Attention, ModelConfig


def train_flops_per_token(cfg: ModelConfig, seq_len: int, *, window_exact: bool = True) -> float:
    """FLOPs of forward and backward (3 x forward), averaged over the tokens of a sequence; recomputation not counted.

    Matrix products of weights and of attention; the lookup of the input table is free. A sliding layer of window w
    costs `T w - w^2 / 2` pairs of T^2 / 2 (exact up to w / 2 pairs). With `window_exact=False` every layer counts as
    fully causal, the usual count, which overstates Olmo 3 7B at 8192 tokens by 2.6 %.
    """
    assert cfg.n_heads is not None and cfg.n_kv_heads is not None
    d, q, kv = cfg.d_model, cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
    weights_per_layer = 2 * d * q + 2 * d * kv + 3 * d * cfg.d_ff
    weights = 2 * (cfg.n_layers * weights_per_layer + d * cfg.padded_vocab)

    periods = cfg.n_layers // len(cfg.window_pattern)
    pairs = 0.0
    for kind in cfg.window_pattern:
        sliding = window_exact and kind is Attention.sliding
        window = min(cfg.window, seq_len) if sliding else seq_len
        pairs += periods * (seq_len * window - window**2 / 2)
    attention = 4 * q * pairs / seq_len
    return 3 * (weights + attention)


def mfu(
    cfg: ModelConfig, seq_len: int, tokens_per_second: float, devices: int, peak_tflops: float | None
) -> float | None:
    """Model FLOPs utilisation by the window-exact count, as a fraction; None where the peak is unknown."""
    if peak_tflops is None:
        return None
    return train_flops_per_token(cfg, seq_len) * tokens_per_second / (devices * peak_tflops * 1e12)
