"""AdamW that skips updates whose loss or gradient norm is an outlier: OLMo-core's SkipStepAdamW, and a mended rule.

Both rules look at the last `window` losses and pre-clip gradient norms, and let an update pass unless one of its own is
more than `sigma` standard deviations above the mean (one-sided, unbiased). They judge from the moment that, with the
present one, half a window of values is known.

`compat=true` is OLMo-core's rule (allenai/OLMo-core, `optim/skip_step_optimizer.py`): every value enters the window.
Hence one NaN blocks a whole window of updates or, before the rule judges, is applied (allenai/OLMo-core#424).

The mended rule:
- A loss or norm that is not finite is always skipped, from the first update, and never remembered. A gradient that is
  not finite makes its norm so.
- Finite outliers are remembered, but not counted: mean and deviation are those of accepted values.
- After `window // 4` finite outliers in a row the window starts anew from just those. Skipped updates leave the
  parameters alone, so a high loss that lasts is a property of the data, not of the step; training must go on. As
  after the start, the rule judges again once half a window is known.
- The deviation is at least `min_std` times the mean, so that a flat loss does not make every ripple an outlier.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from olmo_hydra.config.optim import SkipStepAdamWConfig
from olmo_hydra.optim.adamw import adamw
from olmo_hydra.optim.base import build, metrics

Tree = Any

TINY_STD = 1e-12  # floor of the deviation where the mean is zero as well


class Window(NamedTuple):
    """The last W values in order, newest last; the rule goes by those that are `counted`. Fill level: their number."""

    losses_W: jax.Array
    grad_norms_W: jax.Array
    counted_W: jax.Array


class SkipStepState(NamedTuple):
    """The inner optimizer's state, the window, and what became of the last update. All of it is in the checkpoint."""

    inner: Tree
    window: Window
    skipped: jax.Array
    skipped_total: jax.Array
    consecutive_skips: jax.Array
    consecutive_outliers: jax.Array
    loss_z: jax.Array
    grad_norm_z: jax.Array


# Whether the update passes, the window after it, finite outliers in a row, and the z-scores of loss and gradient norm.
Verdict = tuple[jax.Array, Window, jax.Array, tuple[jax.Array, jax.Array]]


@build.register
def skip_step_adamw(cfg: SkipStepAdamWConfig, decay_mask: Tree) -> optax.GradientTransformationExtraArgs:
    """AdamW under the rule above. A skipped update changes neither parameters nor moments nor Adam's step count.

    The learning rate is the caller's, so a skipped update does not hold up the schedule.
    """
    inner = adamw(cfg, decay_mask)

    def init(params: Tree) -> SkipStepState:
        # An array each: donated buffers must not be shared.
        window = Window(jnp.zeros(cfg.window), jnp.zeros(cfg.window), jnp.zeros(cfg.window, bool))
        counters = [jnp.zeros((), jnp.int32) for _ in range(4)]
        z_scores = [jnp.zeros(()) for _ in range(2)]
        return SkipStepState(inner.init(params), window, *counters, *z_scores)

    def update(
        grads: Tree, state: SkipStepState, params: Tree, *, lr: jax.Array, loss: jax.Array, grad_norm: jax.Array
    ) -> tuple[Tree, SkipStepState]:
        updates, inner_state = inner.update(grads, state.inner, params, lr=lr, loss=loss, grad_norm=grad_norm)
        judge = judge_compat if cfg.compat else judge_mended
        accepted, window, outliers, (loss_z, grad_norm_z) = judge(cfg, state, loss, grad_norm)
        skipped = 1 - accepted.astype(jnp.int32)
        updates = jax.tree.map(lambda u: jnp.where(accepted, u, jnp.zeros_like(u)), updates)
        inner_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), inner_state, state.inner)
        return updates, SkipStepState(
            inner=inner_state,
            window=window,
            skipped=skipped,
            skipped_total=state.skipped_total + skipped,
            consecutive_skips=skipped * (state.consecutive_skips + 1),
            consecutive_outliers=outliers,
            loss_z=loss_z,
            grad_norm_z=grad_norm_z,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def judge_compat(cfg: SkipStepAdamWConfig, state: SkipStepState, loss: jax.Array, grad_norm: jax.Array) -> Verdict:
    """OLMo-core's rule. NaN compares false, so a NaN in the window skips whatever comes."""
    within, z = compare(cfg, state.window, loss, grad_norm, min_std=0.0, tiny_std=0.0)
    window = remember(state.window, loss, grad_norm, counted=jnp.bool_(True))
    return within, window, state.consecutive_outliers, z


def judge_mended(cfg: SkipStepAdamWConfig, state: SkipStepState, loss: jax.Array, grad_norm: jax.Array) -> Verdict:
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
    return accepted, window._replace(counted_W=counted_W), jnp.where(restart, 0, outliers), z


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
def skip_metrics(state: SkipStepState) -> dict[str, jax.Array]:
    """Whether the last update was skipped, counts, and how many deviations its two values lay above the window's mean.

    The z-scores are zero while the rule does not judge yet.
    """
    names = ("skipped", "skipped_total", "consecutive_skips", "loss_z", "grad_norm_z")
    return {name: value for name, value in state._asdict().items() if name in names}
