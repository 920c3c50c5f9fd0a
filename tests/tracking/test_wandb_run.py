"""The live run with the real client: offline, and online against a local server."""

import json
import re
import shutil
import time

import pytest

from olmo_hydra.config.operations import WandbMode
from tests.tracking.wandb_file import history, records
from tests.tracking.wandb_machine import EVALUATION, NAME, Recorded, config, expected, kept_id, machine, make, online
from tests.tracking.wandb_server import serve

pytestmark = pytest.mark.usefixtures(machine.__name__)


@pytest.fixture
def run_dir(tmp_path):
    return make(tmp_path / NAME)


def test_without_a_key_the_rows_go_to_a_file_and_each_start_is_a_run_of_its_own(run_dir):
    for exit_code in (0, 1):
        run = Recorded(run_dir)
        run.evaluation({**EVALUATION, "step": 0, "suite": "baseline_unigram"})
        run.steps((1, 2))
        run.evaluation(EVALUATION)
        run.evaluation({"step": 2, "suite": "samples", "samples": []})
        run.finish(exit_code)
        file = next((run_dir.path / run.wandb.where).glob("*.wandb"))
        baseline = {"baseline_unigram/bits_per_byte": 2.5, "baseline_unigram/stdlib/bits_per_byte": 2.5}
        assert history(file) == [{"train/step": 0, **baseline}, *expected((1, 2), evaluated=(2,))]
        found = {record.WhichOneof("record_type"): record for record in records(file)}
        assert (found["run"].run.run_id, found["run"].run.run_group) == (kept_id(run_dir), "head_dim")
        assert found["run"].run.display_name == NAME
        settings = {item.key: json.loads(item.value_json) for item in found["run"].run.config.update}
        assert settings["model"] == {"d_model": 128}
        assert found["exit"].exit.exit_code == exit_code
        time.sleep(1.1)  # W&B names folders by the second
    assert len(list(run_dir.wandb.glob("offline-run-*"))) == 2


def test_a_run_that_was_not_finished_is_not_written_by_the_next(tmp_path):
    directories = [make(tmp_path / name) for name in ("a", "b")]
    first, second = (Recorded(directory) for directory in directories)
    second.steps((2,))
    first.steps((1,))
    for directory, run, step in zip(directories, (first, second), (1, 2), strict=True):
        run.finish()
        assert history(next((directory.path / run.wandb.where).glob("*.wandb"))) == expected((step,))


def test_disabled_makes_no_files(run_dir, monkeypatch):
    for cfg, environment in ((config(WandbMode.disabled), "online"), (config(), "disabled")):
        monkeypatch.setenv("WANDB_MODE", environment)
        run = Recorded(run_dir, cfg=cfg)
        run.steps((1,))
        run.finish()
        assert run.wandb.where is None
    assert not run_dir.wandb.exists()


@pytest.mark.parametrize(
    ("key", "problem"), [(None, "no API key is configured"), ("short", "API key must have 40+ characters")]
)
def test_online_without_a_usable_key_goes_offline_and_says_so(run_dir, monkeypatch, key, problem):
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    problems = []
    run = Recorded(run_dir, problems=problems, cfg=config(WandbMode.online))
    run.finish()
    assert len(problems) == 1 and problem in problems[0]
    assert "offline-run-" in run.wandb.where


def test_online_each_step_arrives_once_across_restarts(run_dir, machine):
    with serve() as server:
        online(machine, server.url)
        for restored, steps in ((None, range(1, 21)), (10, range(11, 31)), (30, range(31, 33))):
            run = Recorded(run_dir, restored)
            run.steps(steps)
            if steps.stop == 31:
                run.evaluation({**EVALUATION, "step": 30})
            run.finish()
            assert server.exit_code[kept_id(run_dir)] == 0
        bucket = server.buckets[kept_id(run_dir)]
        assert server.rows(kept_id(run_dir)) == expected(range(1, 33), evaluated=(30,))
    assert (bucket["displayName"], bucket["groupName"]) == (NAME, "head_dim")
    assert json.loads(bucket["config"])["model"]["value"] == {"d_model": 128}


def test_online_a_start_first_sends_what_starts_without_wandb_have_recorded(run_dir, machine):
    run = Recorded(run_dir, cfg=config(WandbMode.disabled))
    run.steps(range(1, 8))
    run.finish(event="paused")
    with serve() as server:
        online(machine, server.url)
        run = Recorded(run_dir, restored=5)
        run.steps(range(6, 9))
        run.finish()
        assert server.rows(kept_id(run_dir)) == expected(range(1, 9))


def test_a_step_that_was_cut_is_sent_whole_by_the_next_start(run_dir, machine):
    with serve() as server:
        online(machine, server.url)
        run = Recorded(run_dir)
        run.steps((1, 2))
        run.wandb.metrics(run.record.metrics({"step": 3, "tokens": 300, "loss": 5.0 / 3}))
        run.finish(1, "failed")
        assert server.rows(kept_id(run_dir)) == expected((1, 2))
        run = Recorded(run_dir, restored=2)
        run.steps((3,))
        run.finish()
        assert server.rows(kept_id(run_dir)) == expected((1, 2, 3))


def test_online_a_deleted_run_directory_begins_another_run_of_the_name(tmp_path, machine):
    with serve() as server:
        online(machine, server.url)
        for _ in range(2):
            run_dir = make(tmp_path / NAME)
            run = Recorded(run_dir)
            run.steps((1, 2))
            run.finish()
            assert re.fullmatch(f"{NAME}-[0-9a-f]{{6}}", kept_id(run_dir))
            assert server.rows(kept_id(run_dir)) == expected((1, 2))
            shutil.rmtree(run_dir.path)
        assert [bucket["displayName"] for bucket in server.buckets.values()] == [NAME, NAME]
