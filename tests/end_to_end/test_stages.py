"""The three stages of Olmo 3, one from the end of the other, by the commands of docs/recipes.md; twins, shortened."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import yaml

from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.tracking.run_dir import RunDir
from tests.end_to_end.runs import ROOT, environment, events

TEXT = (
    *("data=text_files", f"data.domains.text.path={sysconfig.get_path('stdlib')}/email"),
    *("data.domains.text.pattern=*.py", "data.heldout_bytes=4000", "eval.sample_tokens=0", "tracking.wandb=disabled"),
)
LENGTHS = {
    "olmo3_7b_stage1_twin": ("train.steps=6", "schedule.first_horizon=5", "schedule.horizon=8"),
    "olmo3_7b_stage2_twin": ("train.steps=4", "schedule.horizon=4", "init.from=run:olmo3_7b_stage1_twin@6"),
    "olmo3_7b_stage3_twin": ("train.steps=3", "schedule.horizon=3", "init.from=run:olmo3_7b_stage2_twin@4"),
}


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
    for experiment in LENGTHS:
        done = train(root, experiment)
        assert done.returncode == 0, done.stderr[-3000:]
    return [next(root.glob(f"{experiment}-*")) for experiment in LENGTHS]


def test_each_stage_begins_where_the_one_before_ended(stages: list[Path]) -> None:
    first, second, third = stages
    assert heldout(second)[0] == heldout(first)[6], "the same parameters, to the last bit"
    assert heldout(third)[0] != heldout(second)[4], "YaRN and longer rows change what they mean"
    assert heldout(third)[0] == pytest.approx(heldout(second)[4], abs=1.0), "but not much"
    began = events(second)[0]
    assert began["event"] == "started" and began["init"]["from"].endswith(f"{first.name}@6")
    assert began["init"]["load"] == "weights_and_moments" and began["init"]["model_differs"] == []
    assert events(third)[0]["init"]["model_differs"] == ["yarn_factor is null and 8.0"]
    # No update moves anything where the rate is 0, so a stage ends as it began its last update.
    assert heldout(second)[4] != heldout(second)[0]


def test_moments_and_their_count_go_on_and_the_window_begins_anew(stages: list[Path]) -> None:
    for stage, (steps, in_window) in zip(stages, ((6, 6), (6 + 4, 4), (6 + 4 + 3, 3)), strict=True):
        checkpoint = RunWeights(RunDir(stage))
        (path,) = (path for path in checkpoint.arrays if path.endswith("/steps"))
        assert checkpoint.read_array(path) == steps
        assert checkpoint.read_array("opt_state/window/counted_W").sum() == in_window


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


def test_the_average_of_two_runs(stages: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "soup"
    command = [sys.executable, "-m", "olmo_hydra", "convert", "soup", str(out), str(stages[0]), str(stages[1])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    soup, *ingredients = (RunWeights(RunDir(path)) for path in (out, stages[0], stages[1]))
    for name in soup.shapes:
        first, second = (np.asarray(weights.read(name), np.float64) for weights in ingredients)
        np.testing.assert_allclose(soup.read(name), (first + second) / 2, rtol=1e-6, atol=1e-9, err_msg=name)
    again = train(stages[0].parent, "olmo3_7b_stage3_twin", f"init.from=run:{out}", "init.load=weights")
    assert again.returncode == 0, again.stderr[-3000:]
