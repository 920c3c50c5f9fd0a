"""Schemas of the `schedule` group: one class a schedule. Lengths are steps, levels fractions of `optim.lr`."""

from dataclasses import dataclass

from omegaconf import MISSING

from olmo_hydra.config.errors import require
from olmo_hydra.config.store import schema


@dataclass
class ScheduleConfig:
    """What every schedule has: a linear warm-up from 0 that ends at step `warmup_steps`."""

    name: str = MISSING
    warmup_steps: int = MISSING

    def derive(self, total_steps: int) -> None:
        """Fills lengths that are null from the number of updates of the run."""

    def check(self, total_steps: int) -> None:
        require(self.warmup_steps >= 0, "must not be negative", key="schedule.warmup_steps", value=self.warmup_steps)
        require(
            self.warmup_steps <= total_steps,
            f"the warm-up is longer than the run ({total_steps} updates)",
            key="schedule.warmup_steps",
            value=self.warmup_steps,
            instead=f"schedule.warmup_steps={max(1, total_steps // 10)}, or a longer train.steps",
        )


@schema("schedule", "constant")
@dataclass
class ConstantConfig(ScheduleConfig):
    """The peak after the warm-up."""


@dataclass
class DecayConfig(ScheduleConfig):
    """A decay from the peak to `final_fraction` of it at step `horizon` (null: the end of the run)."""

    final_fraction: float = MISSING
    horizon: int | None = None

    def derive(self, total_steps: int) -> None:
        if self.horizon is None:
            self.horizon = total_steps

    def check(self, total_steps: int) -> None:
        super().check(total_steps)
        require(
            0 <= self.final_fraction <= 1,
            "is a fraction of the peak and must lie in [0, 1]",
            key="schedule.final_fraction",
            value=self.final_fraction,
            instead="schedule.final_fraction=0.1",
        )
        assert self.horizon is not None
        require(
            self.horizon >= max(self.warmup_steps, 1),
            f"ends before the warm-up does (schedule.warmup_steps={self.warmup_steps})",
            key="schedule.horizon",
            value=self.horizon,
        )


@schema("schedule", "cosine")
@dataclass
class CosineConfig(DecayConfig):
    """Half a period of a cosine from the peak to the floor."""


@schema("schedule", "linear")
@dataclass
class LinearConfig(DecayConfig):
    """A straight line from the peak to the floor."""


@schema("schedule", "wsd")
@dataclass
class WSDConfig(DecayConfig):
    """Warm-up, stable, decay: the peak until `decay_steps` before the horizon, then a straight line to the floor."""

    decay_steps: int | None = None

    def derive(self, total_steps: int) -> None:
        super().derive(total_steps)
        assert self.horizon is not None
        if self.decay_steps is None:
            self.decay_steps = max(1, self.horizon // 10)

    def check(self, total_steps: int) -> None:
        super().check(total_steps)
        assert self.horizon is not None and self.decay_steps is not None
        require(
            1 <= self.decay_steps <= self.horizon - self.warmup_steps,
            f"must lie between 1 and the {self.horizon - self.warmup_steps} steps that the warm-up leaves",
            key="schedule.decay_steps",
            value=self.decay_steps,
        )


@schema("schedule", "double_cosine")
@dataclass
class DoubleCosineConfig(DecayConfig):
    """Olmo 3's stage 1: a cosine over `first_horizon` up to its midpoint, then the second half of a longer one.

    At the midpoint (`first_horizon // 2 + warmup_steps // 2`) the cosine towards `first_horizon` gives way to one that
    ends at `horizon`. Null `first_horizon` is 5/7 of `horizon`, Olmo 3's own proportion (5e12 and 7e12 tokens). The
    `overlap` updates before the midpoint are the second one's already: on a straight line from 0 at step 0 to it.
    """

    first_horizon: int | None = None
    overlap: int = 0

    def derive(self, total_steps: int) -> None:
        super().derive(total_steps)
        assert self.horizon is not None
        if self.first_horizon is None:
            self.first_horizon = self.horizon * 5 // 7

    @property
    def joint(self) -> int:
        """The step at which the second cosine takes over."""
        assert self.first_horizon is not None
        return self.first_horizon // 2 + self.warmup_steps // 2

    def check(self, total_steps: int) -> None:
        super().check(total_steps)
        assert self.horizon is not None and self.first_horizon is not None
        require(
            self.warmup_steps < self.joint < self.horizon,
            f"its midpoint is step {self.joint}; it must lie between the warm-up and schedule.horizon={self.horizon}",
            key="schedule.first_horizon",
            value=self.first_horizon,
        )
        require(
            0 <= self.overlap <= self.joint - self.warmup_steps,
            f"must lie between 0 and the {self.joint - self.warmup_steps} updates from the warm-up to the midpoint",
            key="schedule.overlap",
            value=self.overlap,
            instead="schedule.overlap=0",
        )
