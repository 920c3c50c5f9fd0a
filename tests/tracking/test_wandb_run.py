"""W&B with the real client: offline, and online against a local server that may die."""

import json
import re
import shutil
import time

import pytest
import wandb

from olmo_hydra.config.operations import TrackingConfig, WandbMode
from olmo_hydra.config.root import Config
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_run import WandbRun, start
from tests.tracking.wandb_file import history, records
from tests.tracking.wandb_server import KEY, serve, stop

NAME = "nano-0123abcd"


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine without credentials, and a client that has read no environment yet."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture
def run_dir(tmp_path):
    return make(tmp_path / NAME)


def make(path):
    run_dir = RunDir(path)
    run_dir.path.mkdir(parents=True)
    run_dir.config.write_text("model: {d_model: 128}\noptim: {lr: 4e-3}\n")
    return run_dir


def kept_id(run_dir):
    return (run_dir.wandb / "id").read_text().strip()


def config(mode=WandbMode.auto):
    tracking = TrackingConfig(log_every=1, wandb=mode, project="p", group="head_dim", tags=["a"])
    return Config(tracking=tracking)


def log_steps(run, steps):
    for n in steps:
        run.metrics({"step": n, "loss": 5.0 / n, "grad_norm": None})
        run.throughput({"step": n, "seconds": 0.5, "tokens_per_second": 100.0, "mfu": None})


DOMAIN = {"documents": 3, "bytes": 10, "nats": 20.0, "bits_per_byte": 2.5, "stderr": 0.1}
EVALUATION = {"step": 2, "suite": "heldout", "bits_per_byte": 2.5, "domains": {"stdlib": DOMAIN}}


def expected(steps):
    rows = []
    for n in steps:
        rows.append({"train/step": n, "train/loss": 5.0 / n})
        rows.append({"train/step": n, "perf/seconds": 0.5, "perf/tokens_per_second": 100.0})
    return rows


def test_without_a_key_the_rows_go_to_a_file_and_each_start_is_a_run_of_its_own(run_dir):
    problems = []
    for exit_code in (0, 1):
        run = start(config(), run_dir, NAME, problems.append)
        log_steps(run, (1, 2))
        run.evaluation(EVALUATION)
        run.evaluation({**EVALUATION, "step": 0, "suite": "baseline_unigram"})
        run.evaluation({"step": 2, "suite": "samples", "samples": []})
        run.finish(exit_code)
        file = next((run_dir.path / run.where).glob("*.wandb"))
        assert history(file) == [
            *expected((1, 2)),
            {"train/step": 2, "eval/bits_per_byte": 2.5, "eval/stdlib/bits_per_byte": 2.5},
            {"train/step": 0, "baseline_unigram/bits_per_byte": 2.5, "baseline_unigram/stdlib/bits_per_byte": 2.5},
        ]
        found = {record.WhichOneof("record_type"): record for record in records(file)}
        assert (found["run"].run.run_id, found["run"].run.run_group) == (kept_id(run_dir), "head_dim")
        assert found["run"].run.display_name == NAME
        settings = {item.key: json.loads(item.value_json) for item in found["run"].run.config.update}
        assert settings["optim"] == {"lr": 4e-3}
        assert found["exit"].exit.exit_code == exit_code
        time.sleep(1.1)  # W&B names folders by the second
    assert problems == []
    assert len(list(run_dir.wandb.glob("offline-run-*"))) == 2


def test_a_run_that_was_not_finished_is_not_written_by_the_next(tmp_path):
    directories = [make(tmp_path / name) for name in ("a", "b")]
    first, second = (start(config(), directory, directory.path.name, pytest.fail) for directory in directories)
    log_steps(second, (2,))
    log_steps(first, (1,))
    for directory, run, step in zip(directories, (first, second), (1, 2), strict=True):
        run.finish(0)
        assert history(next((directory.path / run.where).glob("*.wandb"))) == expected((step,))


def test_disabled_makes_no_files(run_dir, monkeypatch):
    for cfg, environment in ((config(WandbMode.disabled), "online"), (config(), "disabled")):
        monkeypatch.setenv("WANDB_MODE", environment)
        run = start(cfg, run_dir, NAME, pytest.fail)
        log_steps(run, (1,))
        run.finish(0)
        assert run.where is None
    assert not run_dir.wandb.exists()


@pytest.mark.parametrize(
    ("key", "problem"), [(None, "no API key is configured"), ("short", "API key must have 40+ characters")]
)
def test_online_without_a_usable_key_goes_offline_and_says_so(run_dir, monkeypatch, key, problem):
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    problems = []
    run = start(config(WandbMode.online), run_dir, NAME, problems.append)
    run.finish(0)
    assert len(problems) == 1 and problem in problems[0]
    assert "offline-run-" in run.where


def test_online_all_rows_arrive_once_across_a_restart(run_dir, monkeypatch):
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        for steps in (range(1, 21), range(11, 31)):  # the second start repeats what follows checkpoint 10
            run = start(config(), run_dir, NAME, pytest.fail)
            log_steps(run, steps)
            run.finish(0)
            wandb_id = kept_id(run_dir)
            assert server.exit_code[wandb_id] == 0
        rows = server.rows(wandb_id)
        bucket = server.buckets[wandb_id]
    # The last step before the restart is sent again: it may have been cut between two of its rows.
    assert rows == expected(range(1, 21)) + expected(range(20, 31))
    assert (bucket["displayName"], bucket["groupName"]) == (NAME, "head_dim")
    assert json.loads(bucket["config"])["model"]["value"] == {"d_model": 128}


def test_online_a_deleted_run_directory_begins_another_run_of_the_name(tmp_path, monkeypatch):
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        for _ in range(2):
            run_dir = make(tmp_path / NAME)
            run = start(config(), run_dir, NAME, pytest.fail)
            log_steps(run, (1, 2))
            run.finish(0)
            assert re.fullmatch(f"{NAME}-[0-9a-f]{{6}}", kept_id(run_dir))
            assert server.rows(kept_id(run_dir)) == expected((1, 2))
            shutil.rmtree(run_dir.path)
        assert [bucket["displayName"] for bucket in server.buckets.values()] == [NAME, NAME]


def test_server_dead_at_the_start_means_offline(run_dir, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    problems = []
    run = start(config(), run_dir, NAME, problems.append, init_timeout=1.0)
    log_steps(run, (1, 2))
    run.finish(0)
    assert len(problems) == 1 and problems[0].endswith("continuing offline")
    assert history(next((run_dir.path / run.where).glob("*.wandb"))) == expected((1, 2))
    assert not list(run_dir.wandb.glob("run-*"))


def test_server_that_dies_in_mid_run_delays_the_end_no_longer_than_asked(run_dir, monkeypatch):
    problems = []
    with serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        run = start(config(), run_dir, NAME, problems.append, finish_timeout=2.0)
        log_steps(run, (1,))
        stop(server)
        log_steps(run, range(2, 50))
        began = time.monotonic()
        run.finish(0)
        assert time.monotonic() - began < 10
    assert len(problems) == 1 and problems[0].startswith("finish failed")
    file = next(run_dir.wandb.glob("run-*/*.wandb"))
    assert history(file) == expected(range(1, 50))


def test_what_the_client_raises_never_reaches_the_loop(run_dir):
    class Away:
        def log(self, row):
            raise BrokenPipeError("service is gone")

        def finish(self, exit_code):
            raise RuntimeError("still\ngone")

    problems = []
    run = WandbRun(Away(), problems.append)
    log_steps(run, (1, 2))
    run.finish(1)
    assert problems == ["log failed: BrokenPipeError: service is gone", "finish failed: RuntimeError: still gone"]
