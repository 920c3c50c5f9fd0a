"""Skipping updates whose loss or gradient norm is an outlier: OLMo-core's SkipStepAdamW, and a mended rule.

Both rules look at the last `window` losses and pre-clip gradient norms, and let an update pass unless one of its own is
more than `sigma` standard deviations above the mean (one-sided, unbiased). They judge from the moment that, with the
present one, half a window of values is known.

`compat=true` is OLMo-core's rule (allenai/OLMo-core, `optim/skip_step_optimizer.py`): every value enters the window.
Hence one NaN blocks a whole window of updates. Where OLMo-core applies an update that is not finite, before its rule
judges (allenai/OLMo-core#424), it is skipped here too: the guard around every optimizer sees to that.

The mended rule:
- A loss or norm that is not finite is never remembered.
- Finite outliers are remembered, but not counted: mean and deviation are those of accepted values.
- After `window // 4` finite outliers in a row the window starts anew from just those. Skipped updates leave the
  parameters alone, so a high loss that lasts is a property of the data, not of the step; training must go on. As
  after the start, the rule judges again once half a window is known.
- The deviation is at least `min_std` times the mean, so that a flat loss does not make every ripple an outlier.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from olmo_hydra.config.optim import SkipStepAdamWConfig
from olmo_hydra.optim.base import Rule, metrics, rule

TINY_STD = 1e-12  # floor of the deviation where the mean is zero as well


class Window(NamedTuple):
    """The last W values in order, newest last; the rule goes by those that are `counted`. Fill level: their number."""

    losses_W: jax.Array
    grad_norms_W: jax.Array
    counted_W: jax.Array


class OutlierState(NamedTuple):
    """The window, finite outliers in a row, and how the last update compared. All of it is in the checkpoint."""

    window: Window
    consecutive_outliers: jax.Array
    loss_z: jax.Array
    grad_norm_z: jax.Array


@rule.register
def outlier_rule(cfg: SkipStepAdamWConfig) -> Rule:
    """The rule above: AdamW itself is what the schema's parent registers."""

    def init() -> OutlierState:
        # An array each: donated buffers must not be shared.
        window = Window(jnp.zeros(cfg.window), jnp.zeros(cfg.window), jnp.zeros(cfg.window, bool))
        return OutlierState(window, jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()))

    return Rule(init, partial(judge_compat if cfg.compat else judge_mended, cfg))


def judge_compat(
    cfg: SkipStepAdamWConfig, state: OutlierState, loss: jax.Array, grad_norm: jax.Array
) -> tuple[jax.Array, OutlierState]:
    """OLMo-core's rule. NaN compares false, so a NaN in the window skips whatever comes."""
    within, z = compare(cfg, state.window, loss, grad_norm, min_std=0.0, tiny_std=0.0)
    window = remember(state.window, loss, grad_norm, counted=jnp.bool_(True))
    return within, OutlierState(window, state.consecutive_outliers, *z)


def judge_mended(
    cfg: SkipStepAdamWConfig, state: OutlierState, loss: jax.Array, grad_norm: jax.Array
) -> tuple[jax.Array, OutlierState]:
    """The mended rule of this module's heading."""
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    within, z = compare(cfg, state.window, loss, grad_norm, min_std=cfg.min_std, tiny_std=TINY_STD)
    accepted = finite & within
    longer = remember(state.window, loss, grad_norm, counted=accepted)
    window = jax.tree.map(lambda new, old: jnp.where(finite, new, old), longer, state.window)

    outliers = jnp.where(accepted, 0, state.consecutive_outliers + finite)
    run = max(2, cfg.window // 4)
    restart = outliers == run
    counted_W = jnp.where(restart, jnp.arange(cfg.window) >= cfg.window - run, window.counted_W)
    return accepted, OutlierState(window._replace(counted_W=counted_W), jnp.where(restart, 0, outliers), *z)


def compare(
    cfg: SkipStepAdamWConfig,
    window: Window,
    loss: jax.Array,
    grad_norm: jax.Array,
    *,
    min_std: float,
    tiny_std: float,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Whether both values lie within `sigma` deviations of the window, if it judges yet; and their z-scores."""
    count = window.counted_W.sum()
    judges = count + 1 >= max(2, cfg.window // 2)

    def one(value: jax.Array, values_W: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = jnp.where(window.counted_W, values_W, 0).sum() / jnp.maximum(count, 1)
        squares = jnp.where(window.counted_W, jnp.square(values_W - mean), 0).sum()
        std = jnp.sqrt(squares / jnp.maximum(count - 1, 1))
        std = jnp.maximum(jnp.maximum(std, min_std * jnp.abs(mean)), tiny_std)
        z = jnp.where(judges, (value - mean) / jnp.maximum(std, TINY_STD), 0)
        return value - mean <= cfg.sigma * std, z

    (loss_within, loss_z), (norm_within, norm_z) = one(loss, window.losses_W), one(grad_norm, window.grad_norms_W)
    return ~judges | (loss_within & norm_within), (loss_z, norm_z)


def remember(window: Window, loss: jax.Array, grad_norm: jax.Array, *, counted: jax.Array) -> Window:
    """The window with its oldest place given to the newest values."""
    newest = Window(loss, grad_norm, counted)
    return jax.tree.map(lambda old_W, new: jnp.append(old_W[1:], new), window, newest)


@metrics.register
def outlier_metrics(state: OutlierState) -> dict[str, jax.Array]:
    """How many deviations loss and norm lay above the window's mean: zero while the rule does not judge yet."""
    return {"loss_z": state.loss_z, "grad_norm_z": state.grad_norm_z}
