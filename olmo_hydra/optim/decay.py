"""Decoupled weight decay, and which parameters it spares."""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import jax
import optax

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.optim import OptimConfig

Tree = Any


def decay_mask(cfg: OptimConfig, names: Tree) -> Tree:
    """Whether each parameter decays: false where a shell pattern of `optim.no_decay` matches its name.

    Args:
      cfg: The optimizer's schema.
      names: Names of the parameters, in their structure (`model.params.param_names`).

    Raises:
      RequestError: A pattern matches no name, which otherwise would be a silent change of recipe.
    """
    known = jax.tree.leaves(names)
    for pattern in cfg.no_decay:
        if not any(fnmatchcase(name, pattern) for name in known):
            nearest = get_close_matches(pattern, known, n=1, cutoff=0)[0]
            raise RequestError(
                "matches no parameter", key="optim.no_decay", value=pattern, instead=f"optim.no_decay=['{nearest}']"
            )
    return jax.tree.map(lambda name: not any(fnmatchcase(name, pattern) for pattern in cfg.no_decay), names)


def add_decay(weight_decay: float, mask: Tree) -> optax.GradientTransformationExtraArgs:
    """Adds `weight_decay * parameter` where the mask says so (arXiv 1711.05101); the rate multiplies it afterwards."""

    def update(updates: Tree, state: Tree, params: Tree, **_: jax.Array) -> tuple[Tree, Tree]:
        return jax.tree.map(lambda u, p, decays: u + weight_decay * p if decays else u, updates, params, mask), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
