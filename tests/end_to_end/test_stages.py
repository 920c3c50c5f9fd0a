"""The three stages of Olmo 3, one from the end of the other, by the commands of docs/recipes.md; twins, shortened."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.kills.tiny import ROOT, environment
from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.tracking.run_dir import RunDir
from tests.end_to_end.runs import events

pytestmark = pytest.mark.slow
TEXT = (
    *("data=text_files", f"data.domains.text.path={sysconfig.get_path('stdlib')}/email"),
    *("data.domains.text.pattern=*.py", "data.heldout_bytes=4000", "eval.sample_tokens=0", "tracking.wandb=disabled"),
)
SEVEN = {
    "olmo3_7b_stage1_twin": ("train.steps=6", "schedule.first_horizon=5", "schedule.horizon=8"),
    "olmo3_7b_stage2_twin": ("train.steps=4", "schedule.horizon=4", "init.from=run:olmo3_7b_stage1_twin@6"),
    "olmo3_7b_stage3_twin": ("train.steps=3", "schedule.horizon=3", "init.from=run:olmo3_7b_stage2_twin@4"),
}
SHORT = ("train.steps=2", "schedule.horizon=2", "train.global_batch=4")
THIRTY_TWO = {
    "olmo3_32b_stage1_twin": (*SHORT, "schedule.warmup_steps=1"),
    "olmo3_32b_stage2_ingredient1_twin": (*SHORT, "init.from=run:olmo3_32b_stage1_twin@2"),
    "olmo3_32b_stage2_ingredient2_twin": (*SHORT, "init.from=run:olmo3_32b_stage1_twin@2"),
    "olmo3_32b_stage3_twin": ("train.steps=2", "schedule.horizon=2", "train.global_batch=1"),
}
LENGTHS = SEVEN | THIRTY_TWO


def train(root: Path, experiment: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), f"experiment={experiment}", *TEXT, *LENGTHS[experiment]]
    command += [f"run.root={root}", "checkpoint.every=100", "eval.every=100", *overrides]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=root)


def heldout(directory: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (directory / "evals.jsonl").read_text().splitlines()]
    return {row["step"]: row["bits_per_byte"] for row in rows if row["suite"] == "heldout"}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [trained(root, experiment) for experiment in SEVEN]


def trained(root: Path, experiment: str, *overrides: str) -> Path:
    done = train(root, experiment, *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(done.stdout.split("run directory  ")[1].splitlines()[0])


def test_each_stage_begins_where_the_one_before_ended(stages: list[Path]) -> None:
    first, second, third = stages
    assert heldout(second)[0] == heldout(first)[6], "the same parameters, to the last bit"
    assert heldout(third)[0] != heldout(second)[4], "YaRN and longer rows change what they mean"
    assert heldout(third)[0] == pytest.approx(heldout(second)[4], abs=1.0), "but not much"
    began = events(second)[0]
    assert began["event"] == "started" and began["init"]["from"].endswith(f"{first.name}@6")
    assert began["init"]["load"] == "weights_and_moments" and began["init"]["differs"] == []
    assert events(third)[0]["init"]["differs"] == ["yarn_factor is null and 8.0"]
    assert heldout(second)[4] != heldout(second)[0], "it has learned something"


def test_moments_and_their_count_go_on_and_the_window_begins_anew(stages: list[Path]) -> None:
    for stage, (steps, in_window) in zip(stages, ((6, 6), (6 + 4, 4), (6 + 4 + 3, 3)), strict=True):
        checkpoint = RunWeights(RunDir(stage))
        (path,) = (path for path in checkpoint.arrays if path.endswith("/steps"))
        assert checkpoint.read_array(path) == steps
        assert checkpoint.read_array("opt_state/rule/window/counted_W").sum() == in_window


def test_each_stage_restarts_its_schedule(stages: list[Path]) -> None:
    peaks = [yaml.safe_load((stage / "config.yaml").read_text())["optim"]["lr"] for stage in stages]
    rates = [
        [json.loads(line)["lr"] for line in (stage / "metrics.jsonl").read_text().splitlines()] for stage in stages
    ]
    np.testing.assert_allclose(rates[0][:2], [peaks[0] / 2, peaks[0]], rtol=1e-6)
    np.testing.assert_allclose(rates[1], [peaks[1] * left / 4 for left in (3, 2, 1, 0)], rtol=1e-6)
    np.testing.assert_allclose(rates[2], [peaks[2], peaks[2] / 2, 0], rtol=1e-6)


def test_a_stage_without_the_one_before_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    done = train(tmp_path, "olmo3_7b_stage2_twin")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "init.from=run:olmo3_7b_stage1_twin@6" in done.stderr and "instead" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_stage_stopped_and_continued_without_its_source_is_the_same(stages: list[Path]) -> None:
    """Packed, masked, and begun from another run, which is gone by the time it goes on."""
    _, second, third = stages
    broken = trained(third.parent, "olmo3_7b_stage3_twin", "run.tag=broken", "run.stop_at=1")
    hidden = second.rename(second.with_name("hidden"))
    try:
        assert trained(third.parent, "olmo3_7b_stage3_twin", "run.tag=broken") == broken
    finally:
        hidden.rename(second)
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert (broken / name).read_bytes() == (third / name).read_bytes(), name
    ours, theirs = RunWeights(RunDir(broken)), RunWeights(RunDir(third))
    for path in theirs.arrays:
        np.testing.assert_array_equal(ours.read_array(path), theirs.read_array(path), err_msg=path)


def test_another_run_under_the_name_of_the_source_is_refused(stages: list[Path]) -> None:
    """Also by a finished run, which would answer for weights that it never saw."""
    first = stages[0]
    other = first.rename(first.with_name("olmo3_7b_stage1_twin-01234567"))
    try:
        done = train(first.parent, "olmo3_7b_stage2_twin")
    finally:
        other.rename(first)
    assert done.returncode == 2 and f"began from {first.name}@6" in done.stderr, done.stderr


def test_the_stages_of_32b_and_their_soup(tmp_path: Path) -> None:
    """Grouped queries; stage 3 from the average of two, by the names and the command of docs/recipes.md."""
    _, *ingredients = (trained(tmp_path, experiment) for experiment in list(THIRTY_TWO)[:3])
    out = tmp_path / "olmo3_32b_stage2_soup_twin"
    command = [sys.executable, "-m", "olmo_hydra", "convert", "soup", str(out), *map(str, ingredients)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    soup, one, two = (RunWeights(RunDir(path)) for path in (out, *ingredients))
    for name in soup.shapes:
        mean = (np.asarray(one.read(name), np.float64) + np.asarray(two.read(name), np.float64)) / 2
        np.testing.assert_allclose(soup.read(name), mean, rtol=1e-6, atol=1e-9, err_msg=name)
    assert any((one.read(name) != two.read(name)).any() for name in soup.shapes), "the ingredients differ"
    third = trained(tmp_path, "olmo3_32b_stage3_twin")
    assert events(third)[0]["init"]["from"].endswith("olmo3_32b_stage2_soup_twin@0")
    assert events(third)[0]["init"]["load"] == "weights"
