"""Gradient transformations and learning-rate schedules, as optax objects.

Importing an optimizer's module registers it with `build`.
"""

from olmo_hydra.optim import adamw, skip_step
from olmo_hydra.optim.base import build, metrics
from olmo_hydra.optim.decay import decay_mask

__all__ = ["adamw", "build", "decay_mask", "metrics", "skip_step"]
