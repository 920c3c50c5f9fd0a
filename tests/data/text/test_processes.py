"""A corpus is the same, byte by byte, whatever number of processes prepares it and however often they are killed."""

import dataclasses
import filecmp
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import olmo_hydra
from olmo_hydra.config.data import TextConfig
from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.data.text import prepare as prepare_module
from olmo_hydra.data.text import workers
from olmo_hydra.data.text.build import Settings
from olmo_hydra.data.text.prepare import prepare, prepare_into
from olmo_hydra.data.text.sources import files

SCRIPT = """
import pickle, sys
from pathlib import Path
from olmo_hydra.data.text import sources, workers
from olmo_hydra.data.text.build import Settings
from olmo_hydra.data.text.prepare import prepare_into
sources.files.UNIT_BYTES = 20_000
workers.IN_PROCESS = 0
cfg = pickle.loads(bytes.fromhex(sys.argv[1]))
report = lambda line: print(line, flush=True)
progress = lambda *counts: print(*counts, flush=True)
settings = Settings(int(sys.argv[3]), shard_tokens=30_000, progress=progress)
print(prepare_into(cfg, Path(sys.argv[2]), settings, report).fingerprint)
"""


@pytest.fixture
def cfg(cfg: TextConfig) -> TextConfig:
    """One domain of a dozen pieces, and a tokenizer of its own."""
    cfg.domains["formats"].pattern = "json/*.py"
    cfg.domains["asyncio"].pattern = "[a-m]*.py"
    return dataclasses.replace(cfg, tokenizer="bpe:300")


@pytest.fixture(autouse=True)
def _many_pieces(monkeypatch):
    """Small pieces, and processes at once."""
    monkeypatch.setattr(files, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(workers, "IN_PROCESS", 0)


def start(cfg, folder, count):
    command = [sys.executable, "-c", SCRIPT, pickle.dumps(cfg).hex(), str(folder), str(count)]
    environment = os.environ | {"PYTHONPATH": str(Path(olmo_hydra.__file__).parents[1])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def made_by(cfg, folder, count) -> Path:
    lines: list[str] = []
    prepare_into(cfg, folder, Settings(count, shard_tokens=30_000), lines.append).verify()
    return folder


def assert_same(folder: Path, other: Path) -> None:
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(folder, other, names, shallow=False)[1:] == ([], [])


def test_any_number_of_processes(cfg, tmp_path):
    expected = made_by(cfg, tmp_path / "1", 1)
    assert len(list((expected / "train" / "asyncio").glob("*.npy"))) > 2
    for count in (2, 4):
        assert_same(expected, made_by(cfg, tmp_path / str(count), count))


@pytest.mark.parametrize("place", ["link", "link/runs", "file/runs"])
def test_a_place_that_cannot_be_made_is_refused(cfg, tmp_path, place):
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"run\.root"):
        prepare(cfg, tmp_path / place, lambda line: None)


def test_killed_at_any_moment(cfg, tmp_path):
    expected = made_by(cfg, tmp_path / "whole", 1)
    folder = tmp_path / "killed"
    rng = random.Random(0)
    kills = 0
    while not folder.exists():
        process = start(cfg, folder, 2)
        lines = [process.stdout.readline() for _ in range(rng.randrange(1, 20) + 4 * kills)]
        time.sleep(rng.random() / 50)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0), (lines, process.stderr.read())
        kills += 1
    assert kills > 2
    assert_same(expected, made_by(cfg, folder, 1))
    assert not list(tmp_path.glob("*.partial"))


def test_killed_when_all_is_done(cfg, tmp_path, monkeypatch):
    def killed(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("olmo_hydra.data.text.prepare._remove", killed)
        with pytest.raises(KeyboardInterrupt):
            made_by(cfg, tmp_path / "corpus", 1)
    assert (tmp_path / "corpus.partial").exists()
    made_by(cfg, tmp_path / "corpus", 1)
    assert not (tmp_path / "corpus.partial").exists()


def test_a_waiting_process_never_works_beside_another(cfg, tmp_path):
    """As threads, of which each opens the lock on its own: who waited for a folder that is gone takes the next one."""
    inside, entered = [], []

    def build(number):
        for _ in range(30):
            with prepare_module._alone_in(tmp_path / "c.partial", lambda line: None):
                inside.append(number)
                entered.append(len(inside))
                time.sleep(0.0005)
                inside.remove(number)
                prepare_module._remove(tmp_path / "c.partial")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(build, range(4)))
    assert set(entered) == {1} and len(entered) == 120


@pytest.mark.parametrize("change", ["recipe", "text"])
def test_parts_of_something_else_are_not_taken(cfg, tmp_path, change):
    process = start(cfg, tmp_path / "corpus", 2)
    while not process.stdout.readline().startswith("tokenizing 3"):
        pass
    process.kill()
    process.wait()
    if change == "recipe":
        cfg.split_seed = 1
    else:
        path = Path(cfg.domains["asyncio"].path) / "base_events.py"
        path.write_text(path.read_text().replace("event", "EVENT"))  # as long as before
    assert_same(made_by(cfg, tmp_path / "other", 1), made_by(cfg, tmp_path / "corpus", 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "library", "other"]


def test_ctrl_c_ends_all_processes_and_loses_nothing(cfg, tmp_path):
    process = start(cfg, tmp_path / "corpus", 2)
    while not process.stdout.readline().startswith("reading 3"):
        pass
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert "data: stopped; the same command continues" in output and "KeyboardInterrupt" in errors
    assert len(list(tmp_path.glob("corpus.partial/texts/*.read.json"))) >= 3
    assert_same(made_by(cfg, tmp_path / "other", 1), made_by(cfg, tmp_path / "corpus", 1))


def dies(arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def raises(arguments):
    raise RequestErrorLike(arguments, unpicklable=lambda: None)


class RequestErrorLike(Exception):
    def __init__(self, text, *, unpicklable):
        super().__init__(text)
        self.unpicklable = unpicklable


def test_a_process_that_dies_is_named():
    with workers.Workers(2) as started, pytest.raises(RunFailed, match=r"prepared web: 00.* killed by SIGKILL"):
        list(started.run(dies, [("web: 00", ("a",)), ("web: 00", ("b",))]))


def test_a_process_that_dies_between_tasks_is_named(monkeypatch):
    start_one = workers.Workers._start

    def start_and_kill(self):
        start_one(self)
        process = list(self._started.values())[-1]
        process.kill()
        process.wait()

    monkeypatch.setattr(workers.Workers, "_start", start_and_kill)
    # Larger than what a pipe takes before anybody reads.
    tasks = [("web: 00", ("a" * 1_000_000,)), ("web: 01", ("b",))]
    with workers.Workers(2) as started, pytest.raises(RunFailed, match=r"prepared web: 0.* killed by SIGKILL"):
        list(started.run(raises, tasks))


def test_what_a_task_raises_arrives():
    with workers.Workers(2) as started, pytest.raises(RuntimeError, match="RequestErrorLike: a"):
        list(started.run(raises, [("web: 00", ("a",)), ("web: 01", ("a",))]))


def test_two_commands_at_once(cfg, tmp_path):
    processes = [start(cfg, tmp_path / "corpus", 1) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert outputs[0][-1] == outputs[1][-1]
    assert sum("prepared in" in line for output in outputs for line in output) == 1


def test_text_for_a_laptop_needs_no_other_process(cfg, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "IN_PROCESS", 60)
    monkeypatch.setattr(workers.Workers, "_start", lambda self: pytest.fail("started a process"))
    corpus = prepare(cfg, tmp_path / "cache", lambda line: None)
    assert json.loads((corpus.folder / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


def test_signals_that_stop_a_run_do_not_reach_a_worker_that_starts():
    script = """
import os, signal, time
from olmo_hydra.data.signals import STOPPING
from olmo_hydra.data.text import workers

for number in STOPPING:
    signal.signal(number, lambda number, frame: None)
with workers.Workers(2) as started:
    started._start()
    for number in 5 * STOPPING:
        os.killpg(0, number)
        time.sleep(0.05)
    print(list(started.run(time.sleep, [("a", (0,)), ("b", (0,))])))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", "")
