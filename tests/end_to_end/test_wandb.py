"""The real command while W&B fails, and what `olmo-hydra runs --sync` makes of its run directory."""

import os
import subprocess
import sys

import pytest

from benchmarks.kills.tiny import command, environment
from olmo_hydra.tracking.run_dir import RunDir
from tests.end_to_end.runs import events, find
from tests.tracking.wandb_server import KEY, Reply, serve


def with_key(server):
    return environment() | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}


def done(arguments, cwd, environ):
    return subprocess.run(arguments, capture_output=True, text=True, env=environ, cwd=cwd)


def numbers(row):
    """What W&B has to hold of a row of metrics."""
    named = {name if "/" in name else f"train/{name}": value for name, value in row.items()}
    return {name: value for name, value in named.items() if value is not None}


@pytest.mark.slow
def test_a_refused_key_ends_nothing_and_everything_comes_later(tmp_path):
    with serve() as server:
        server.intercept = lambda call: Reply(401)
        trained = done(command(tmp_path, "run.tag=key", "train.steps=30"), tmp_path, with_key(server))
    run = find(tmp_path, "key")
    kinds = [event["event"] for event in events(run)]
    assert (trained.returncode, kinds.count("wandb_unavailable"), kinds[-1]) == (0, 1, "finished"), trained.stderr
    assert trained.stderr.count("warning: W&B") == 1
    with serve() as server:
        for outcome in ("sent", "has"):
            synced = done([sys.executable, "-m", "olmo_hydra", "runs", "--sync", "."], tmp_path, with_key(server))
            assert (synced.returncode, synced.stdout.split()[:2]) == (0, [run.name, f"{outcome}:"]), synced.stderr
        (rows,) = map(server.rows, server.history)
    recorded = RunDir(run).rows("metrics")
    assert [row["train/step"] for row in rows] == [0, *(row["step"] for row in recorded)]
    for row, metrics in zip(rows[1:], recorded, strict=True):
        assert numbers(metrics).items() <= row.items()
    heldout = {row["step"]: row["bits_per_byte"] for row in RunDir(run).rows("evals") if row["suite"] == "heldout"}
    assert {row["train/step"]: row["eval/bits_per_byte"] for row in rows if "eval/bits_per_byte" in row} == heldout


@pytest.mark.slow
def test_a_client_that_is_broken_ends_nothing(tmp_path):
    broken = tmp_path / "broken" / "wandb"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise SystemExit('no such interpreter')\n")
    environ = environment() | {"PYTHONPATH": os.fspath(broken.parent)}
    trained = done(command(tmp_path, "run.tag=broken", "train.steps=5", "eval.sample_tokens=0"), tmp_path, environ)
    found = events(find(tmp_path, "broken"))
    kinds = [event["event"] for event in found]
    assert (trained.returncode, kinds.count("wandb_unavailable"), kinds[-1]) == (0, 1, "finished"), trained.stderr
