"""Schema of the `model` group: one decoder-only transformer."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.store import schema


class Attention(Enum):
    """How far back a layer attends."""

    sliding = "sliding"
    full = "full"


class QKNorm(Enum):
    """RMSNorm on queries and keys: over the whole projection (Olmo 2 and 3), over each head, or absent."""

    projection = "projection"
    head = "head"
    none = "none"


class BlockNorm(Enum):
    """Where a block normalises: on each sublayer's output (Olmo 2 and 3) or on its input (Llama)."""

    reordered = "reordered"
    pre = "pre"


class InitMethod(Enum):
    """How the standard deviation of initial weights depends on a matrix and its depth (OLMo-core's `InitMethod`).

    `normal` (Olmo 3): `init_std` everywhere. `llama`, `llama_depth`: as normal, but what a layer adds to the residual
    starts smaller by the root of twice the number of layers, or of twice the layer's own number. `fan_in`: one over the
    root of a matrix's inputs.
    """

    normal = "normal"
    fan_in = "fan_in"
    llama = "llama"
    llama_depth = "llama_depth"


POSITIVE = (
    *("d_model", "n_layers", "head_dim", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "vocab_multiple"),
    *("max_seq_len", "window", "rope_theta", "norm_eps", "init_std", "init_cut"),
    *("yarn_original_len", "yarn_beta_fast", "yarn_beta_slow"),
)


@schema("model")
@dataclass
class ModelConfig:
    """Shape, initialisation and dtypes of the decoder. Fields are documented in `conf/model/*.yaml`."""

    name: str = MISSING
    d_model: int = MISSING
    n_layers: int = MISSING
    head_dim: int = MISSING
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_ff: int = MISSING
    vocab_size: int = MISSING
    vocab_multiple: int = MISSING
    max_seq_len: int = MISSING
    window: int = MISSING
    window_pattern: list[Attention] = MISSING
    rope_theta: float = MISSING
    yarn_factor: float | None = None
    yarn_original_len: int = MISSING
    yarn_beta_fast: float = MISSING
    yarn_beta_slow: float = MISSING
    norm_eps: float = MISSING
    qk_norm: QKNorm = MISSING
    block_norm: BlockNorm = MISSING
    init_method: InitMethod = MISSING
    init_std: float = MISSING
    init_cut: float = MISSING
    param_dtype: DType = MISSING
    compute_dtype: DType = MISSING

    def derive(self) -> None:
        """Fills what is null: `n_heads` from the width, `n_kv_heads` from `n_heads`."""
        if self.n_heads is None:
            if self.head_dim < 1 or self.d_model % self.head_dim:
                fits = [str(d) for d in (16, 32, 64, 128, 256) if self.d_model % d == 0]
                raise RequestError(
                    f"model.d_model={self.d_model} is not a multiple of it, so the number of heads cannot be derived",
                    key="model.head_dim",
                    value=self.head_dim,
                    instead=f"model.head_dim={' or '.join(fits) or 'a divisor'}, or set model.n_heads as well",
                )
            self.n_heads = self.d_model // self.head_dim
        if self.n_kv_heads is None:
            self.n_kv_heads = self.n_heads

    def check(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            require(value > 0, "must be positive", key=f"model.{name}", value=value)
        require(self.head_dim % 2 == 0, "must be even: RoPE rotates pairs", key="model.head_dim", value=self.head_dim)
        assert self.n_heads is not None and self.n_kv_heads is not None
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"model.n_heads={self.n_heads} is not a multiple of it",
            key="model.n_kv_heads",
            value=self.n_kv_heads,
        )
        require(
            self.yarn_factor is None or self.yarn_factor >= 1,
            "must be at least 1, or null for plain RoPE",
            key="model.yarn_factor",
            value=self.yarn_factor,
        )
        require(
            self.yarn_factor is None or self.rope_theta > 1,
            "must be above 1 for YaRN: otherwise no pair turns more slowly than another",
            key="model.rope_theta",
            value=self.rope_theta,
            instead="model.rope_theta=5e5, or model.yarn_factor=null",
        )
        require(
            self.yarn_beta_fast > self.yarn_beta_slow,
            f"must be larger than model.yarn_beta_slow={self.yarn_beta_slow}: pairs that turn faster keep their speed",
            key="model.yarn_beta_fast",
            value=self.yarn_beta_fast,
            instead="model.yarn_beta_fast=32 model.yarn_beta_slow=1",
        )
        period = len(self.window_pattern)
        require(period > 0, "must name at least one layer", key="model.window_pattern", value=self.window_pattern)
        lower = self.n_layers // period * period
        require(
            self.n_layers % period == 0,
            f"must be a multiple of the {period} layers of model.window_pattern",
            key="model.n_layers",
            value=self.n_layers,
            instead="model.n_layers=" + (f"{lower} or {lower + period}" if lower else str(period)),
        )

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding table and columns of the head: `vocab_size` rounded up to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def num_params(self) -> int:
        """Parameters of the built model, from the config alone (closed form of `docs/model.md`)."""
        assert self.n_heads is not None and self.n_kv_heads is not None
        d, q, k = self.d_model, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        layer = 2 * d * q + 2 * d * k + 3 * d * self.d_ff
        return 2 * self.padded_vocab * d + self.n_layers * layer + self.num_norm_params

    @property
    def num_norm_params(self) -> int:
        """Those of them that are gains of norms."""
        assert self.n_heads is not None and self.n_kv_heads is not None
        projections = (self.n_heads + self.n_kv_heads) * self.head_dim
        qk_norm = {QKNorm.projection: projections, QKNorm.head: 2 * self.head_dim, QKNorm.none: 0}[self.qk_norm]
        return self.n_layers * (qk_norm + 2 * self.d_model) + self.d_model

    @property
    def num_params_without_input_table(self) -> int:
        """What OLMo-core calls non-embedding parameters: the untied head is among them."""
        return self.num_params - self.padded_vocab * self.d_model
