import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from olmo_hydra.config.schedule import ConstantConfig, CosineConfig, DoubleCosineConfig, LinearConfig, WSDConfig
from olmo_hydra.optim import schedules

# Olmo 3 7B. The digits are allenai/OLMo-core's own schedulers, run; the tolerance is what the printed ones allow.
STAGE1_A = CosineConfig(name="cosine", warmup_steps=2000, final_fraction=0.1, horizon=1_192_093)
STAGE1 = DoubleCosineConfig(
    name="double_cosine", warmup_steps=2000, final_fraction=0.1, horizon=1_668_931, first_horizon=1_192_093
)
STAGE2 = LinearConfig(name="linear", warmup_steps=0, final_fraction=0.0, horizon=47_684)
STAGE3 = LinearConfig(name="linear", warmup_steps=200, final_fraction=0.0, horizon=11_921)
PEAK1, PEAK2 = 3e-4, 2.0712352850360292e-4

BEFORE_JOINT = [
    (1, 1.5e-7, 1e-12),
    (1_000, 1.5e-4, 1e-12),
    (2_000, 3.0e-4, 1e-12),
    (500_000, 1.9920753464770308e-4, 1e-12),
    (596_047, 1.6535619271678472e-4, 1e-12),
]
GOLDEN = {
    "stage 1, first cosine": (
        STAGE1_A,
        PEAK1,
        [
            *BEFORE_JOINT,
            (597_046, 1.6500017818565782e-4, 1e-12),
            (597_047, 1.649998218e-4, 4e-10),
            (1_000_000, 4.698786301e-5, 2e-10),
            (1_192_093, 3e-5, 1e-12),
            (5_000_000, 3e-5, 1e-12),
        ],
    ),
    "stage 1": (
        STAGE1,
        PEAK1,
        [
            *BEFORE_JOINT,
            (597_046, 1.65e-4, 1e-12),
            (597_047, 1.649998022e-4, 4e-10),
            (800_000, 1.254377252e-4, 4e-10),
            (1_000_000, 8.98340769244571e-5, 1e-12),
            (1_200_000, 6.064124344e-5, 1e-9),
            (1_400_000, 4.034904776e-5, 2e-10),
            (1_413_814, 3.93252716718148e-5, 1e-12),
            (1_668_931, 3e-5, 1e-12),
        ],
    ),
    "stage 2": (
        STAGE2,
        PEAK2,
        [
            (1, 2.071191848e-4, 3e-10),
            (10_000, 1.636868352e-4, 4e-10),
            (23_842, 1.035617643e-4, 5e-10),
            (47_683, 4.3437e-9, 2e-5),
            (47_684, 0.0, 0.0),
        ],
    ),
    "stage 3": (
        STAGE3,
        PEAK2,
        [
            (1, 1.035617643e-6, 5e-10),
            (100, 1.035617643e-4, 5e-10),
            (200, PEAK2, 1e-12),
            (6_000, 1.046308687e-4, 5e-10),
            (11_920, 1.7671e-8, 3e-5),
            (11_921, 0.0, 0.0),
        ],
    ),
}


@pytest.mark.parametrize("stage", GOLDEN)
def test_published_learning_rates(stage):
    cfg, peak, rows = GOLDEN[stage]
    schedule = schedules.build(cfg)
    for step, expected, relative in rows:
        assert peak * schedule(step) == pytest.approx(expected, rel=relative, abs=0), step


def test_the_overlap_is_the_second_schedules_own_line():
    """Part 2 of stage 1 took up step 596,047: OLMo-core's half_cos_with_warmup rises to the joint until there."""
    rate = schedules.build(replace(STAGE1, overlap=999))
    first = schedules.build(STAGE1)
    assert 3e-4 * rate(596_047) == pytest.approx(1.6535619271678472e-4, rel=1e-12)
    assert 3e-4 * rate(596_048) == pytest.approx(1.65e-4 * 596_048 / 597_046, rel=1e-12)
    assert 3e-4 * rate(597_045) == pytest.approx(1.65e-4 * 597_045 / 597_046, rel=1e-12)
    for step in (1, 1999, 2000, 300_000, 597_046, 597_047, 1_413_814):
        assert rate(step) == first(step)


def test_slopes_at_the_joint_of_stage_1():
    lr = schedules.build(STAGE1)
    joint = STAGE1.joint
    assert joint == 597_046
    before, after = (lr(joint - 1) - lr(joint - 1001)) / 1000, (lr(joint + 1001) - lr(joint + 1)) / 1000
    assert PEAK1 * before == pytest.approx(-3.56e-10, rel=2e-3)
    assert PEAK1 * after == pytest.approx(-1.98e-10, rel=2e-3)


def test_five_sevenths_is_olmo3s_first_horizon_within_a_step():
    cfg = DoubleCosineConfig(name="double_cosine", warmup_steps=2000, final_fraction=0.1)
    cfg.derive(1_668_931)
    assert abs(cfg.first_horizon - 1_192_093) <= 1


def test_wsd_known_values():
    cfg = WSDConfig(name="wsd", warmup_steps=10, final_fraction=0.2, horizon=100, decay_steps=40)
    schedule = schedules.build(cfg)
    rates = [schedule(step) for step in (5, 10, 60, 61, 80, 100, 101)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.98, 0.6, 0.2, 0.2], rel=1e-12)


def test_constant_known_values():
    schedule = schedules.build(ConstantConfig(name="constant", warmup_steps=4))
    assert [schedule(step) for step in (1, 2, 3, 4, 5, 10**9)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_no_warmup_starts_below_or_at_the_peak():
    assert schedules.build(ConstantConfig(name="constant", warmup_steps=0))(1) == 1.0
    assert schedules.build(LinearConfig(name="linear", warmup_steps=0, final_fraction=0, horizon=4))(1) == 0.75


@st.composite
def decays(draw):
    """A derived and checked config of any decaying schedule."""
    steps = draw(st.integers(12, 2_000_000))
    warmup = draw(st.integers(0, steps // 3))
    floor = draw(st.floats(0, 1))
    kind = draw(st.sampled_from([LinearConfig, CosineConfig, WSDConfig, DoubleCosineConfig]))
    cfg = kind(name="any", warmup_steps=warmup, final_fraction=floor)
    cfg.derive(steps)
    cfg.check(steps)
    return cfg


@settings(max_examples=200, deadline=None)
@given(cfg=decays(), where=st.floats(0, 1))
@example(
    DoubleCosineConfig(name="any", warmup_steps=1, final_fraction=0.0, horizon=13, first_horizon=9, overlap=0), 0.125
)
def test_decays_are_bounded_and_monotone(cfg, where):
    schedule = schedules.build(cfg)
    step = cfg.warmup_steps + round(where * (cfg.horizon - cfg.warmup_steps))
    here, there = schedule(step), schedule(step + 1)
    assert cfg.final_fraction - 1e-15 <= there <= here + 1e-15 <= 1 + 2e-15
    # no schedule falls faster than the steepest of them: a straight line over its decay, or a cosine's middle
    decay = min(getattr(cfg, "decay_steps", math.inf), cfg.horizon - cfg.warmup_steps)
    steepest, midpoint_jump = math.pi / 2 / decay, 0.0
    if isinstance(cfg, DoubleCosineConfig):
        assert cfg.first_horizon is not None
        steepest, midpoint_jump = math.pi / 2 / (cfg.first_horizon - cfg.warmup_steps), 2 / decay
    assert here - there <= (1 - cfg.final_fraction) * (steepest + midpoint_jump) + 1e-12
    assert schedule(cfg.horizon) == pytest.approx(cfg.final_fraction, abs=1e-15)
    assert schedule(cfg.horizon + 10**6) == schedule(cfg.horizon)


@settings(max_examples=100, deadline=None)
@given(cfg=decays())
def test_warmup_is_a_straight_line_to_the_peak(cfg):
    schedule = schedules.build(cfg)
    for step in {1, cfg.warmup_steps // 2, cfg.warmup_steps - 1}:
        if 0 < step < cfg.warmup_steps:
            assert schedule(step) == pytest.approx(step / cfg.warmup_steps, rel=1e-15)
    assert schedule(cfg.warmup_steps) == pytest.approx(1.0, rel=1e-15)


@settings(max_examples=100, deadline=None)
@given(half_warmup=st.integers(0, 10_000), half_first=st.integers(10_001, 10**6), extra=st.integers(0, 10**6))
def test_double_cosine_is_continuous_at_its_joint(half_warmup, half_first, extra):
    """With an exact midpoint the two cosines meet in the same value, half-way between peak and floor."""
    cfg = DoubleCosineConfig(
        name="double_cosine",
        warmup_steps=2 * half_warmup,
        final_fraction=0.1,
        horizon=2 * half_first + extra,
        first_horizon=2 * half_first,
    )
    first = CosineConfig(name="cosine", warmup_steps=2 * half_warmup, final_fraction=0.1, horizon=2 * half_first)
    assert schedules.build(cfg)(cfg.joint) == pytest.approx(0.55, rel=1e-12)
    assert schedules.build(first)(cfg.joint) == pytest.approx(0.55, rel=1e-9)


def test_unregistered_schema_is_named():
    with pytest.raises(TypeError, match="no schedule is registered for dict"):
        schedules.build({})
