"""The recipes of Olmo 3 state what was run, their rates are OLMo-core's, each twin is its recipe at another scale."""

from functools import cache
from typing import Any

import pytest
import yaml

from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import MixConfig
from olmo_hydra.config.identity import flat, plain
from olmo_hydra.config.paths import CONF
from olmo_hydra.config.root import Config
from olmo_hydra.config.schedule import DoubleCosineConfig
from olmo_hydra.optim import schedules

MIDTRAINING = "OLMo-midtraining-mix"
# Sequence, tokens an update, updates, tokens, data seed, mix, filter: the official scripts of allenai/OLMo-core.
RECIPES: dict[str, tuple[int, int, int, int, int, str, bool]] = {
    "olmo3_7b_stage1": (8192, 2**22, 1_413_814, 5_929_965_715_456, 34521, "OLMo-mix-0625-official", False),
    "olmo3_7b_stage1_single_cosine": (
        *(8192, 2**22, 1_414_078, 1_414_078 * 2**22, 34521),
        *("OLMo-mix-0625-official", False),
    ),
    "olmo3_7b_stage2": (8192, 2**21, 47_684, 100_000_595_968, 1337, f"{MIDTRAINING}-0625-100B", False),
    "olmo3_7b_stage3": (65536, 2**22, 11_921, 50_000_297_984, 34521, "OLMo-longmino-mix-0625", False),
    "olmo3_32b_stage1": (8192, 2**23, 656_000, 5_502_926_848_000, 34521, "OLMo-mix-0925-official", True),
    "olmo3_32b_stage2_ingredient1": (
        *(8192, 2**22, 23_842, 100_000_595_968, 42069),
        *(f"{MIDTRAINING}-0925-ingredient1-100B", True),
    ),
    "olmo3_32b_stage2_ingredient2": (
        *(8192, 2**22, 23_842, 100_000_595_968, 42069),
        *(f"{MIDTRAINING}-0925-ingredient2-100B", True),
    ),
    "olmo3_32b_stage3": (65536, 2**23, 11_921, 100_000_595_968, 34521, "OLMo-longmino-mix-0925", True),
}
PEAK_7B, PEAK_32B = 2.0712352850360292e-4, 2.071235285e-4

# (update, rate, relative error that the printed digits allow): allenai/OLMo-core's own schedulers, run.
SEVEN = 5e-8
GOLDEN: dict[tuple[str, ...], list[tuple[int, float, float]]] = {
    ("olmo3_7b_stage1",): [
        (1, 1.5e-7, SEVEN),
        (1_000, 1.5e-4, SEVEN),
        (2_000, 3.0e-4, SEVEN),
        (500_000, 1.9920753464770308e-4, SEVEN),
        (596_047, 1.6535619271678472e-4, SEVEN),
        (597_046, 1.65e-4, SEVEN),
        (597_047, 1.649998022e-4, SEVEN),
        (800_000, 1.254377252e-4, SEVEN),
        (1_000_000, 8.98340769244571e-5, SEVEN),
        (1_200_000, 6.064124344e-5, SEVEN),
        (1_400_000, 4.034904776e-5, SEVEN),
        (1_413_814, 3.93252716718148e-5, SEVEN),
        (1_668_931, 3.0e-5, SEVEN),
    ],
    ("olmo3_7b_stage1_single_cosine", "schedule.horizon=1192093"): [  # part 1's script
        (1, 1.5e-7, SEVEN),
        (1_000, 1.5e-4, SEVEN),
        (2_000, 3.0e-4, SEVEN),
        (500_000, 1.9920753464770308e-4, SEVEN),
        (596_047, 1.6535619271678472e-4, SEVEN),
        (597_046, 1.6500017818565782e-4, SEVEN),
        (597_047, 1.649998218e-4, SEVEN),
        (1_000_000, 4.698786301e-5, SEVEN),
    ],
    ("olmo3_7b_stage1_single_cosine",): [(2_000, 3.0e-4, SEVEN), (708_039, 1.65e-4, SEVEN), (1_414_078, 3.0e-5, SEVEN)],
    ("olmo3_7b_stage2",): [
        (1, 2.071191848e-4, SEVEN),
        (10_000, 1.636868352e-4, SEVEN),
        (23_842, 1.035617643e-4, SEVEN),
        (47_683, 4.3437e-9, 2e-5),
        (47_684, 0.0, 0.0),
    ],
    ("olmo3_7b_stage3",): [
        (1, 1.035617643e-6, SEVEN),
        (100, 1.035617643e-4, SEVEN),
        (200, PEAK_7B, SEVEN),
        (6_000, 1.046308687e-4, SEVEN),
        (11_920, 1.7671e-8, 3e-5),
        (11_921, 0.0, 0.0),
    ],
    ("olmo3_32b_stage1",): [
        (1, 3e-7, SEVEN),
        (2_000, 6e-4, SEVEN),
        (354_456, 3.3e-4, SEVEN),  # half-way from the warm-up to 706,912, half-way from the peak to the floor
        (679_000, 6.210e-5, 3e-4),  # arXiv 2512.13961, figure 4
        (706_912, 6e-5, SEVEN),
    ],
    **{
        (f"olmo3_32b_stage2_ingredient{i}",): [
            (1, PEAK_32B * 23_841 / 23_842, SEVEN),
            (11_921, PEAK_32B / 2, SEVEN),
            (23_842, 0.0, 0.0),
        ]
        for i in (1, 2)
    },
    ("olmo3_32b_stage3",): [
        (1, 1.035617643e-6, SEVEN),
        (100, 1.035617643e-4, SEVEN),
        (200, PEAK_32B, SEVEN),
        (6_000, 1.046308687e-4, SEVEN),
        (11_921, 0.0, 0.0),
    ],
}


@cache
def composed(*overrides: str) -> Config:
    recipe, *rest = overrides
    return compose([f"experiment={recipe}", *rest])


def rate(config: Config, step: int) -> float:
    return config.optim.lr * schedules.build(config.schedule)(step)


def differing(one: Config, other: Config) -> set[str]:
    a, b = flat(plain(one)), flat(plain(other))
    return {key for key in a | b if a.get(key) != b.get(key)}


def test_these_are_all() -> None:
    found = {path.stem for path in (CONF / "experiment").glob("*.yaml")} - {"nano"}
    assert found == {*RECIPES, *(f"{recipe}_twin" for recipe in RECIPES)}


@pytest.mark.parametrize("typed", GOLDEN, ids=" ".join)
def test_golden_rates(typed: tuple[str, ...]) -> None:
    config = composed(*typed)
    for step, expected, error in GOLDEN[typed]:
        assert rate(config, step) == pytest.approx(expected, rel=error, abs=0), step


def test_part_2_of_stage_1_takes_over_before_the_joint() -> None:
    """Part 2 loads step 596,047 and makes the updates after it, on its own line to the joint."""
    config = composed("olmo3_7b_stage1")
    assert isinstance(config.schedule, DoubleCosineConfig) and config.schedule.joint == 597_046
    slope = 1.65e-4 / 597_046
    assert slope * 596_047 == pytest.approx(1.647239157e-4, rel=SEVEN)  # what it would have been at the step it loads
    assert rate(config, 596_048) == pytest.approx(slope * 596_048, rel=SEVEN)
    assert rate(config, 597_045) == pytest.approx(slope * 597_045, rel=SEVEN)


@pytest.mark.parametrize("horizon", [706_315, 707_507])
def test_what_the_horizon_of_32b_leaves_open(horizon: int) -> None:
    """Tokens of the mix are printed with three digits: 5.925e12 to 5.935e12."""
    other = composed("olmo3_32b_stage1", f"schedule.horizon={horizon}")
    assert rate(other, 656_000) == pytest.approx(rate(composed("olmo3_32b_stage1"), 656_000), rel=3e-3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers(recipe: str) -> None:
    config = composed(recipe)
    data, optim, train = config.data, config.optim, config.train
    assert isinstance(data, MixConfig)
    assert (
        *(data.seq_len, train.global_batch * data.seq_len, train.steps, train.tokens),
        *(data.seed, data.mix, data.repetition_filter),
    ) == RECIPES[recipe]
    assert plain(optim) == {
        **{"name": "skip_step_adamw_compat", "lr": optim.lr, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        **{"no_decay": ["embedding*"], "clip_norm": 1.0, "mu_dtype": "float32", "nu_dtype": "float32"},
        **{"window": 128, "sigma": 6.0, "compat": True, "max_consecutive_skips": 256, "min_std": 1e-3},
    }
    assert train.z_loss == 1e-5 and config.run.name == recipe and config.checkpoint.every == 1000
    assert (config.model.param_dtype.value, config.model.compute_dtype.value) == ("float32", "bfloat16")
    long = "stage3" in recipe
    assert (config.model.yarn_factor, config.model.max_seq_len) == ((8, 65536) if long else (None, 8192))
    assert (data.instances.value, data.document_mask, data.file_seed) == (
        ("packed", True, 123) if long else ("windows", False, None)
    )
    assert not long or data.pack_files == 8
    assert data.filter_padding == (recipe == "olmo3_32b_stage3")  # where OLMo-core packs and filters, it does
    assert data.heldout_mix == "v3-small-ppl-validation" and data.max_target_seq_len is None
    assert data.document_positions.value == "continued"
    assert config.hardware.name == "cpu"
    assert not {key for key in differing(config, composed(recipe, "hardware=ironwood")) if "hardware" not in key}

    file: dict[str, Any] = yaml.safe_load((CONF / "data" / f"{data.name}.yaml").read_text())
    mine = plain(data)
    assert {key for key in mine if file[key] != mine[key]} == {"seed"}


def test_tokens_of_7b() -> None:
    stages = [composed(f"olmo3_7b_stage{stage}").train.tokens or 0 for stage in (1, 2, 3)]
    assert sum(stages) == 6_079_966_609_408


def test_single_cosine_differs_in_the_schedule_alone() -> None:
    found = differing(composed("olmo3_7b_stage1"), composed("olmo3_7b_stage1_single_cosine"))
    keys = {key for key in found if not key.startswith("schedule.")}
    assert keys == {"run.name", "train.steps", "train.tokens"}


def test_ingredients_differ_in_the_mix_alone() -> None:
    found = differing(*(composed(f"olmo3_32b_stage2_ingredient{i}") for i in (1, 2)))
    assert found == {"run.name", "data.name", "data.mix"}


@pytest.mark.parametrize(
    "choice",
    [
        "optim=adamw",
        "optim=skip_step_adamw",
        "schedule=cosine",
        "schedule=double_cosine",
        "schedule=wsd",
        "schedule=constant",
    ],
)
@pytest.mark.parametrize("recipe", [*RECIPES, *(f"{recipe}_twin" for recipe in RECIPES)])
def test_a_recipe_takes_another_optimizer_or_schedule(recipe: str, choice: str) -> None:
    assert composed(recipe, choice).run.name == recipe


@pytest.mark.parametrize("twin", ["", "_twin"])
@pytest.mark.parametrize(
    ("recipe", "before"),
    [
        ("olmo3_7b_stage2", "olmo3_7b_stage1"),
        ("olmo3_7b_stage3", "olmo3_7b_stage2"),
        ("olmo3_32b_stage2_ingredient1", "olmo3_32b_stage1"),
        ("olmo3_32b_stage2_ingredient2", "olmo3_32b_stage1"),
    ],
)
def test_a_stage_starts_from_the_end_of_the_one_before(recipe: str, before: str, twin: str) -> None:
    init = composed(recipe + twin).init
    assert init.source == f"run:{before}{twin}@{composed(before + twin).train.steps}"
    assert init.load.value == "weights_and_moments"


@pytest.mark.parametrize("twin", ["", "_twin"])
def test_the_last_stage_of_32b_starts_from_an_average(twin: str) -> None:
    init = composed(f"olmo3_32b_stage3{twin}").init
    assert (init.source, init.load.value) == (f"run:olmo3_32b_stage2_soup{twin}", "weights")


SCALE = {
    *("model.name", "model.d_model", "model.n_layers", "model.head_dim", "model.n_heads", "model.n_kv_heads"),
    *("model.d_ff", "model.vocab_size", "model.vocab_multiple", "model.max_seq_len", "model.window"),
    *("model.yarn_original_len", "model.compute_dtype", "train.global_batch", "train.steps", "train.tokens"),
    *("data.name", "data.tokenizer", "data.seq_len", "data.mix", "data.file_seed", "data.repetition_filter"),
    *("data.keep_copies", "data.heldout_mix", "data.filter_padding"),
    *("data.heldout_fraction", "data.heldout_bytes", "data.heldout_document_bytes", "data.split_seed"),
    *("data.min_bytes", "data.max_bytes", "optim.lr", "init.from", "run.name"),
    *("schedule.name", "schedule.warmup_steps", "schedule.horizon", "schedule.first_horizon", "schedule.overlap"),
    *("eval.every", "eval.batch", "eval.sample_tokens", "checkpoint.every", "tracking.log_every"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_twin_is_its_recipe_at_another_scale(recipe: str) -> None:
    true, twin = composed(recipe), composed(f"{recipe}_twin")
    may = SCALE | ({"data.seed"} if recipe.endswith("ingredient2") else set())  # its one text has one mix only
    found = {key for key in differing(true, twin) if not key.startswith("data.domains.")}
    assert found <= may
    assert type(true.schedule) is type(twin.schedule) and type(true.optim) is type(twin.optim)
    assert twin.run.name == f"{recipe}_twin"

    for key in ("seq_len", "window", "yarn_original_len", "max_seq_len"):  # lengths, divided by 32
        node = "data" if key == "seq_len" else "model"
        assert getattr(getattr(true, node), key) == 32 * getattr(getattr(twin, node), key)
    assert twin.model.n_layers % len(twin.model.window_pattern) == 0 and twin.model.window < twin.data.seq_len
    heads, twin_heads = (config.model.n_heads // config.model.n_kv_heads for config in (true, twin))
    assert heads == twin_heads == (5 if "32b" in recipe else 1)


@pytest.mark.parametrize("size", ["7b", "32b"])
def test_twins_of_a_size_share_batches_and_rates_in_proportion(size: str) -> None:
    pairs = [(composed(recipe), composed(f"{recipe}_twin")) for recipe in RECIPES if f"_{size}_" in recipe]
    assert len({true.train.global_batch / twin.train.global_batch for true, twin in pairs}) == 1
    ratios = [twin.optim.lr / true.optim.lr for true, twin in pairs]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-12)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_schedule_of_a_twin_has_the_same_shape(recipe: str) -> None:
    """Warm-up, joint, stretch and end lie at the same fractions of the run, to one update of the twin."""
    true, twin = composed(recipe), composed(f"{recipe}_twin")
    steps, twin_steps = true.train.steps or 0, twin.train.steps or 0
    for key in ("warmup_steps", "first_horizon", "joint", "horizon"):
        if hasattr(true.schedule, key):
            scaled = getattr(true.schedule, key) / steps * twin_steps
            assert abs(getattr(twin.schedule, key) - scaled) < (2 if key == "warmup_steps" else 1), key
    assert (twin.schedule.warmup_steps == 0) == (true.schedule.warmup_steps == 0)
    for fraction in (0.25, 0.5, 0.75, 1.0):
        ours = rate(twin, round(fraction * twin_steps)) / twin.optim.lr
        assert ours == pytest.approx(rate(true, round(fraction * steps)) / true.optim.lr, abs=0.02)
