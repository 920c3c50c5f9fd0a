"""Schemas of the `optim` group: one class an optimizer."""

from dataclasses import dataclass

from omegaconf import MISSING

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import require
from olmo_hydra.config.store import schema


@dataclass
class OptimConfig:
    """What every optimizer has. `lr` is the peak; the schedule multiplies it.

    No optimizer applies an update whose loss or gradient is not finite, and the run stops after `max_consecutive_skips`
    skipped ones in a row.
    """

    name: str = MISSING
    lr: float = MISSING
    weight_decay: float = MISSING
    no_decay: list[str] = MISSING
    clip_norm: float | None = MISSING
    max_consecutive_skips: int = MISSING

    @property
    def state_bytes_per_param(self) -> int:
        """Bytes of optimizer state for each parameter: none, unless an optimizer keeps moments."""
        return 0

    def check(self) -> None:
        require(self.lr > 0, "must be positive", key="optim.lr", value=self.lr, instead="optim.lr=3e-4")
        require(self.weight_decay >= 0, "must not be negative", key="optim.weight_decay", value=self.weight_decay)
        require(
            self.clip_norm is None or self.clip_norm > 0,
            "must be positive, or null for no clipping",
            key="optim.clip_norm",
            value=self.clip_norm,
        )
        require(
            self.max_consecutive_skips >= 1,
            "must be at least 1",
            key="optim.max_consecutive_skips",
            value=self.max_consecutive_skips,
        )


@schema("optim", "adamw")
@dataclass
class AdamWConfig(OptimConfig):
    """AdamW with decoupled weight decay (arXiv 1711.05101)."""

    b1: float = MISSING
    b2: float = MISSING
    eps: float = MISSING
    mu_dtype: DType = MISSING
    nu_dtype: DType = MISSING

    @property
    def state_bytes_per_param(self) -> int:
        return self.mu_dtype.size + self.nu_dtype.size

    def check(self) -> None:
        super().check()
        for name in ("b1", "b2"):
            value = getattr(self, name)
            require(0 <= value < 1, "must lie in [0, 1)", key=f"optim.{name}", value=value)
        require(self.eps > 0, "must be positive", key="optim.eps", value=self.eps)


@schema("optim", "skip_step_adamw")
@dataclass
class SkipStepAdamWConfig(AdamWConfig):
    """AdamW that skips an update whose loss or gradient norm is an outlier of its window (OLMo-core's rule, mended)."""

    window: int = MISSING
    sigma: float = MISSING
    min_std: float = MISSING
    compat: bool = MISSING

    def check(self) -> None:
        super().check()
        require(self.window >= 4, "must be at least 4", key="optim.window", value=self.window)
        require(self.sigma > 0, "must be positive", key="optim.sigma", value=self.sigma)
        require(self.min_std >= 0, "must not be negative", key="optim.min_std", value=self.min_std)
