"""Learning-rate schedules: from the number of an update to the fraction of the peak it uses.

Plain Python in float64, evaluated on the host: the rate is an argument of the jitted step, so that the rate logged is
the rate applied. Update n uses `schedule(n)`, n from 1. Beyond its horizon a schedule stays at its floor.
"""

import math
from collections.abc import Callable
from functools import singledispatch

from olmo_hydra.config.schedule import (
    ConstantConfig,
    CosineConfig,
    DoubleCosineConfig,
    LinearConfig,
    ScheduleConfig,
    WSDConfig,
)

Schedule = Callable[[int], float]


@singledispatch
def build(cfg: ScheduleConfig) -> Schedule:
    """The schedule that a config describes; one registered function for each schema. `cfg` is derived and checked."""
    raise TypeError(f"no schedule is registered for {type(cfg).__name__}")


@build.register
def constant(cfg: ConstantConfig) -> Schedule:
    """The peak."""
    return warmed_up(cfg.warmup_steps, lambda step: 1.0)


@build.register
def linear(cfg: LinearConfig) -> Schedule:
    """A straight line from the end of the warm-up to the floor at the horizon."""
    horizon = _filled(cfg.horizon)
    return warmed_up(
        cfg.warmup_steps,
        lambda step: between(cfg.final_fraction, 1 - progress(step, cfg.warmup_steps, horizon)),
    )


@build.register
def cosine(cfg: CosineConfig) -> Schedule:
    """Half a period from the end of the warm-up to the floor at the horizon (arXiv 1608.03983)."""
    horizon = _filled(cfg.horizon)
    return warmed_up(
        cfg.warmup_steps,
        lambda step: between(cfg.final_fraction, half_cosine(progress(step, cfg.warmup_steps, horizon))),
    )


@build.register
def wsd(cfg: WSDConfig) -> Schedule:
    """The peak, then a straight line to the floor over the last `decay_steps` before the horizon (arXiv 2404.06395)."""
    horizon = _filled(cfg.horizon)
    decay_start = horizon - _filled(cfg.decay_steps)
    return warmed_up(
        cfg.warmup_steps, lambda step: between(cfg.final_fraction, 1 - progress(step, decay_start, horizon))
    )


@build.register
def double_cosine(cfg: DoubleCosineConfig) -> Schedule:
    """A cosine towards `first_horizon`, up to its midpoint; there the second half of the one that ends at `horizon`.

    Olmo 3 7B lengthened stage 1 so, half-way (allenai/OLMo-core, OLMo-3-1025-7B-pretrain-2.py). The value is
    continuous at the joint, the slope is not. The second run took up a checkpoint from `overlap` updates before the
    joint, and made them on the warm-up line of its own schedule.
    """
    first_horizon, horizon = _filled(cfg.first_horizon), _filled(cfg.horizon)

    def after_warmup(step: int) -> float:
        if cfg.joint - cfg.overlap < step < cfg.joint:
            return between(cfg.final_fraction, 0.5) * step / cfg.joint
        if step < cfg.joint:
            return between(cfg.final_fraction, half_cosine(progress(step, cfg.warmup_steps, first_horizon)))
        return between(cfg.final_fraction, half_cosine(0.5 + 0.5 * progress(step, cfg.joint, horizon)))

    return warmed_up(cfg.warmup_steps, after_warmup)


def warmed_up(warmup_steps: int, after: Schedule) -> Schedule:
    """A straight line from 0 that meets `after` at step `warmup_steps`."""
    return lambda step: step / warmup_steps if step < warmup_steps else after(step)


def progress(step: int, start: int, end: int) -> float:
    """How far `step` has come from `start` to `end`: 0 before, 1 after."""
    return 1.0 if step >= end else max(0, step - start) / (end - start)


def half_cosine(fraction: float) -> float:
    """From 1 to 0 along half a period."""
    return (1 + math.cos(math.pi * fraction)) / 2


def between(floor: float, height: float) -> float:
    """The level at `height` between a floor (0) and the peak (1)."""
    return floor + (1 - floor) * height


def _filled(steps: int | None) -> int:
    assert steps is not None, "the schedule's config was not derived"
    return steps
