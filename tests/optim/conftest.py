from collections.abc import Callable

import pytest

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.optim import AdamWConfig, SkipStepAdamWConfig

ADAMW = {
    "name": "adamw",
    "lr": 3e-4,
    "weight_decay": 0.1,
    "no_decay": ["embedding*"],
    "clip_norm": 1.0,
    "max_consecutive_skips": 10,
    "b1": 0.9,
    "b2": 0.95,
    "eps": 1e-8,
    "mu_dtype": DType.float32,
    "nu_dtype": DType.float32,
}
SKIP_STEP = {"window": 128, "sigma": 6.0, "min_std": 1e-3, "compat": False}


@pytest.fixture(scope="session")
def adamw() -> Callable[..., AdamWConfig]:
    """Olmo 3's AdamW, with the given fields changed."""

    def make(**changes) -> AdamWConfig:
        cfg = AdamWConfig(**{**ADAMW, **changes})
        cfg.check()
        return cfg

    return make


@pytest.fixture(scope="session")
def skip_step() -> Callable[..., SkipStepAdamWConfig]:
    """Olmo 3's skip rule in its mended form, with the given fields changed."""

    def make(**changes) -> SkipStepAdamWConfig:
        cfg = SkipStepAdamWConfig(**{**ADAMW, **SKIP_STEP, **changes})
        cfg.check()
        return cfg

    return make
