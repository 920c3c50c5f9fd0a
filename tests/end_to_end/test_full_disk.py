"""A disk that fills up, or goes away, under a run: one message, what is whole stays, and the same command continues."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from benchmarks.kills.tiny import STEPS, command, environment
from tests.components import require_hardware
from tests.end_to_end.runs import events, find, last_step, train
from tests.end_to_end.test_train import assert_identical

QUIET = "tracking.wandb=disabled"
FAILING = ("optim=adamw", "optim.lr=1e20", "optim.clip_norm=null")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB, with the cache on another one: only the run directory fills it."""
    place, how = tmp_path / "small", "as root, pytest tests/end_to_end/test_full_disk.py"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True)
    require_hardware("a file system of its own", mounted.returncode == 0, how)
    (tmp_path / "cache").mkdir()
    (place / "cache").symlink_to(tmp_path / "cache")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(root: Path) -> Path:
    ballast = root / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return ballast


@contextlib.contextmanager
def at_step(root: Path, step: int, *overrides: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run that has written the row of a step and goes on."""
    process = subprocess.Popen(
        command(root, *overrides),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(),
        cwd=root,
    )
    try:
        while (directory := find(root, "full")) is None or last_step(directory / "metrics.jsonl") < step:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        yield process, directory
    finally:
        process.kill()
        process.wait()


def one_message(text: str) -> list[str]:
    assert "Traceback" not in text, text
    (*_, message) = text.split("error: ")
    assert text.count("error: ") == 1, text
    return message.splitlines()


@pytest.mark.slow
def test_a_run_whose_disk_fills_up_stops_and_continues_byte_for_byte(small: Path, tmp_path: Path) -> None:
    options = ("run.tag=full", QUIET, "checkpoint.every=60")
    with at_step(small, 61, *options) as (process, directory):
        while not (directory / "checkpoints" / "60").exists():
            time.sleep(0.002)
        ballast = fill(small)  # a page of rows, at most, after it
        _, said = process.communicate(timeout=120)
    problem, where, instead = one_message(said)
    assert process.returncode == 2 and problem.startswith("no space left to write")
    assert (
        where.endswith(".jsonl")
        and str(directory) in where
        and instead == "  instead: the same command, once there is space"
    )
    for path in directory.glob("*.jsonl"):
        content = path.read_bytes()
        assert content.endswith(b"\n") and all(map(json.loads, content.splitlines())), path
    assert [path.name for path in (directory / "checkpoints").iterdir() if path.name.isdecimal()] == ["60"]

    refused = train(small, *options)
    assert refused.returncode == 2 and one_message(refused.stderr)[0].startswith("no space left to write")
    ballast.unlink()
    done = train(small, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert events(directory)[-1]["event"] == "finished" and (directory / "report.html").stat().st_size > 1e6
    assert not list(directory.glob(".*.jsonl.*"))

    assert train(tmp_path, "run.tag=unbroken", QUIET, "checkpoint.every=60").returncode == 0
    unbroken = find(tmp_path, "unbroken")
    assert unbroken is not None
    assert_identical(directory, unbroken)


@pytest.mark.slow
def test_a_disk_that_fills_up_within_a_save(small: Path) -> None:
    """However much of it is being written then: on the same disk, again and again."""
    rng = Random(5)
    for _ in range(4):
        with at_step(small, 1, "run.tag=full", QUIET, "checkpoint.every=1") as (process, directory):
            saved = directory / "checkpoints"
            while not any(int(path.name.partition(".")[0]) > 2 for path in saved.glob("*.orbax-checkpoint-tmp")):
                assert process.poll() is None, process.communicate()
            time.sleep(rng.uniform(0, 0.1))
            ballast = fill(small)
            _, said = process.communicate(timeout=120)
        assert process.returncode == 2 and re.search("[Nn]o space left|are free", one_message(said)[0]), said
        assert any(path.name.isdecimal() for path in saved.iterdir()), said
        ballast.unlink()
    shutil.rmtree(saved)


def test_a_run_directory_that_is_removed_ends_the_run_with_one_message(tmp_path: Path) -> None:
    with at_step(tmp_path, 10, "run.tag=full", QUIET, "train.steps=100000") as (process, directory):
        shutil.rmtree(directory, ignore_errors=True)
        _, said = process.communicate(timeout=120)
    problem, where, _ = one_message(said)
    assert process.returncode == 2 and problem == "was removed while the run wrote it" and str(directory) in where
    assert not (directory / "checkpoints").exists() and not (directory / "report.html").exists()


@pytest.mark.slow
def test_a_report_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    """Neither that the run is finished, nor why it failed."""
    options = ("run.tag=full", QUIET, "train.steps=20")
    assert train(tmp_path, *options, "run.stop_at=10").returncode == 0
    directory = find(tmp_path, "full")
    assert directory is not None
    (directory / "report.html").unlink()
    (directory / "report.html").mkdir()
    done = train(tmp_path, *options)
    assert done.returncode == 2 and "report.html" in one_message(done.stderr)[1], done.stderr
    assert events(directory)[-1]["event"] == "finished"
    (directory / "report.html").rmdir()
    assert train(tmp_path, *options).returncode == 0 and (directory / "report.html").is_file()

    failing = ("run.tag=wrong", QUIET, *FAILING, f"train.steps={STEPS}")
    assert train(tmp_path, *failing, "run.stop_at=1").returncode in (0, 1)
    wrong = find(tmp_path, "wrong")
    assert wrong is not None
    (wrong / "report.html").unlink()
    (wrong / "report.html").mkdir()
    done = train(tmp_path, *failing)
    assert done.returncode == 1 and "failed: " in done.stderr and "report.html" not in done.stderr, done.stderr
    assert os.listdir(wrong / "report.html") == [] and events(wrong)[-1]["event"] == "failed"
