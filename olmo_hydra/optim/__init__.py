"""Gradient transformations and learning-rate schedules, as optax objects.

Importing an optimizer's module registers it, for `build` to find.
"""

from olmo_hydra.optim import adamw, skip_step
from olmo_hydra.optim.base import metrics
from olmo_hydra.optim.decay import decay_mask
from olmo_hydra.optim.guard import build

__all__ = ["adamw", "build", "decay_mask", "metrics", "skip_step"]
