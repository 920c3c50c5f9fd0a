"""FLOPs of a training step, from the config alone."""

from dataclasses import dataclass

from olmo_hydra.config.model import Attention, BlockNorm, ModelConfig
from olmo_hydra.config.remat import Point, Remat


@dataclass(frozen=True)
class Matmul:
    """A product of `[tokens, inputs]` with a weight `[inputs, outputs]`, `count` times in the model.

    `tensor` divides the side that is not the model's width: `outputs`, or `inputs` where `is_second` of a pair. `point`
    is the name of the result in a layer.
    """

    part: str
    inputs: int
    outputs: int
    count: int
    point: Point | None = None

    @property
    def is_second(self) -> bool:
        return self.point in (Point.out, Point.down)


def matmuls(cfg: ModelConfig) -> list[Matmul]:
    """All products with weights of the forward pass; the lookup of the input table is none."""
    assert cfg.n_heads is not None and cfg.n_kv_heads is not None
    d, q, kv, layers = cfg.d_model, cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim, cfg.n_layers
    return [
        Matmul("projections", d, q, layers, Point.q),
        Matmul("projections", d, kv, layers, Point.k),
        Matmul("projections", d, kv, layers, Point.v),
        Matmul("projections", q, d, layers, Point.out),
        Matmul("mlp", d, cfg.d_ff, layers, Point.gate),
        Matmul("mlp", d, cfg.d_ff, layers, Point.up),
        Matmul("mlp", cfg.d_ff, d, layers, Point.down),
        Matmul("head", d, cfg.padded_vocab, 1),
    ]


def recomputed(cfg: ModelConfig, remat: Remat) -> frozenset[Point]:
    """Points of a layer that the backward pass computes again: those that are not kept, and that it needs.

    The last product of a layer is needed by the norm behind it, if there is one.
    """
    unneeded = {Point.down} if cfg.block_norm is BlockNorm.pre else set()
    return frozenset(Point) - remat.kept - unneeded


def causal_pairs(seq_len: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees, itself among them, in one sequence."""
    window = min(window or seq_len, seq_len)
    return window * (window + 1) // 2 + (seq_len - window) * window


def attention_flops_per_token(cfg: ModelConfig, seq_len: int, *, window_exact: bool = True) -> float:
    """FLOPs of the forward pass of attention in all layers, averaged over the tokens of a sequence.

    A sliding layer of window w costs `T w - w^2 / 2` pairs of T^2 / 2 (exact up to w / 2 pairs). With
    `window_exact=False` every layer counts as fully causal.
    """
    assert cfg.n_heads is not None
    periods = cfg.n_layers // len(cfg.window_pattern)
    pairs = 0.0
    for kind in cfg.window_pattern:
        sliding = window_exact and kind is Attention.sliding
        window = min(cfg.window, seq_len) if sliding else seq_len
        pairs += periods * (seq_len * window - window**2 / 2)
    return 4 * cfg.n_heads * cfg.head_dim * pairs / seq_len


def train_flops_per_token(cfg: ModelConfig, seq_len: int, *, window_exact: bool = True) -> float:
    """FLOPs of forward and backward (3 x forward), averaged over the tokens of a sequence; recomputation not counted.

    With `window_exact=False` attention is counted as usual, every layer fully causal, which overstates Olmo 3 7B at
    8192 tokens by 2.6 %.
    """
    weights = sum(2 * one.count * one.inputs * one.outputs for one in matmuls(cfg))
    return 3 * (weights + attention_flops_per_token(cfg, seq_len, window_exact=window_exact))


def mfu(
    cfg: ModelConfig, seq_len: int, tokens_per_second: float, devices: int, peak_tflops: float | None
) -> float | None:
    """Model FLOPs utilisation by the window-exact count, as a fraction; None where the peak is unknown."""
    if peak_tflops is None:
        return None
    return train_flops_per_token(cfg, seq_len) * tokens_per_second / (devices * peak_tflops * 1e12)
