"""`python train.py` through its real command: what it leaves behind, and that it can be stopped at any moment."""

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.kills.compare import arrays_of
from benchmarks.kills.tiny import STEPS, command, environment
from tests.end_to_end.runs import events, find, stopped, train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def unbroken(root: Path) -> Path:
    done = train(root, "run.tag=unbroken", "tracking.wandb=auto")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "report.html" in done.stdout and "trigram" in done.stdout and str(find(root, "unbroken")) in done.stdout
    directory = find(root, "unbroken")
    assert directory is not None
    return directory


def rows(directory: Path, kind: str) -> list[dict]:
    return [json.loads(line) for line in (directory / f"{kind}.jsonl").read_text().splitlines()]


def test_the_run_directory_holds_everything(unbroken: Path) -> None:
    names = {path.name for path in unbroken.iterdir()} - {".lock"}
    assert names == {
        *("config.yaml", "overrides.yaml", "provenance.json", "metrics.jsonl", "throughput.jsonl", "evals.jsonl"),
        *("time.jsonl", "events.jsonl", "checkpoints", "wandb", "logs", "report.html"),
    }
    assert [row["step"] for row in rows(unbroken, "metrics")] == list(range(1, STEPS + 1))
    assert [(row["step"], row["suite"]) for row in rows(unbroken, "evals")] == [
        (0, "heldout"),
        (0, "baseline_unigram"),
        (0, "baseline_trigram"),
        (40, "heldout"),
        (80, "heldout"),
        (STEPS, "heldout"),
        (STEPS, "samples"),
    ]
    assert sorted(int(path.name) for path in (unbroken / "checkpoints").iterdir()) == [25, 50, 75, 100, STEPS]
    assert next(unbroken.glob("wandb/offline-run-*/*.wandb")).stat().st_size > 1000
    assert "run.tag=unbroken" in yaml.safe_load((unbroken / "overrides.yaml").read_text())
    assert yaml.safe_load((unbroken / "config.yaml").read_text())["model"]["n_heads"] == 2


def test_it_learns(unbroken: Path) -> None:
    heldout = [row["bits_per_byte"] for row in rows(unbroken, "evals") if row["suite"] == "heldout"]
    assert heldout[0] == pytest.approx(np.log2(257), abs=0.1)  # over the ids that exist, uniformly
    assert heldout[-1] < heldout[0] - 2.5


def test_a_finished_run_says_so_at_once(root: Path, unbroken: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    started = time.monotonic()
    done = train(root, "run.tag=unbroken")
    assert done.returncode == 0 and "finished already" in done.stdout and str(unbroken) in done.stdout
    assert time.monotonic() - started < 6  # it imports no JAX
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before


def leaves(directory: Path) -> tuple[dict[str, np.ndarray], dict]:
    """All arrays of the last checkpoint, and what it says of the data."""
    place = directory / "checkpoints" / str(STEPS)
    return arrays_of(place), json.loads((place / "data" / "metadata").read_text())


def assert_identical(directory: Path, unbroken: Path) -> None:
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert (directory / name).read_bytes() == (unbroken / name).read_bytes(), name
    (left, read), (right, wanted) = leaves(directory), leaves(unbroken)
    assert read == wanted and read["position"]["batches"] == STEPS and read["ledger"]["repeated"] == 0
    assert left.keys() == right.keys() >= {"words"} and any(name.startswith("opt_state") for name in left)
    for name, leaf in left.items():
        assert leaf.dtype == right[name].dtype and leaf.tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize(
    ("tag", "number", "status"),
    [
        ("kill", signal.SIGKILL, -9),
        pytest.param("int", signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param("term", signal.SIGTERM, 75, marks=pytest.mark.slow),
        pytest.param("usr1", signal.SIGUSR1, 75, marks=pytest.mark.slow),
        pytest.param("usr2", signal.SIGUSR2, 75, marks=pytest.mark.slow),
    ],
)
def test_stopped_runs_continue_byte_for_byte(root: Path, unbroken: Path, tag: str, number, status: int) -> None:
    options = (f"run.tag={tag}", "tracking.wandb=disabled")
    assert stopped(root, number, 31, *options) == status
    directory = find(root, tag)
    assert directory is not None
    saved = [event["step"] for event in events(directory) if event["event"] == "checkpoint"]
    if number is not signal.SIGKILL:
        last = events(directory)[-1]
        assert last["event"] == ("interrupted" if number is signal.SIGINT else "preempted")
        assert last["signal"] == number.name and saved[-1] == last["step"] >= 31 and 0 < last["seconds"] < 60
    assert stopped(root, signal.SIGKILL, 90, *options) == -9  # between checkpoints, rows past the last one on disk
    done = train(root, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_identical(directory, unbroken)
    starts = [event["event"] for event in events(directory) if event["event"] in ("started", "resumed")]
    assert len(starts) == 3 and starts[2] == "resumed" and events(directory)[-1]["event"] == "finished"


def test_stop_at_pauses_without_touching_the_schedule(root: Path, unbroken: Path) -> None:
    options = ("run.tag=pause", "tracking.wandb=disabled")
    paused = train(root, *options, "run.stop_at=30")
    directory = find(root, "pause")
    assert paused.returncode == 0 and directory is not None and events(directory)[-1]["event"] == "paused"
    assert len(rows(directory, "metrics")) == 30
    assert train(root, *options, "run.stop_at=30").returncode == 0
    kinds = [event["event"] for event in events(directory)]
    assert (
        kinds[-2:] == ["resumed", "paused"] and kinds.count("compiled") == 1
    )  # for nothing to do, nothing is compiled
    assert train(root, *options, "checkpoint.every=60", "hardware.loader_threads=0").returncode == 0
    assert_identical(directory, unbroken)
    resumed = [event for event in events(directory) if event["event"] == "resumed"][-1]
    assert resumed["changed"] == {
        "checkpoint.every": {"was": 25, "is": 60},
        "hardware.loader_threads": {"was": 2, "is": 0},
        "run.stop_at": {"was": 30, "is": None},
    }


def test_a_sweep_trains_every_cell(root: Path) -> None:
    cells = ["-m", "optim.mu_dtype=float32,bfloat16", "train.steps=6", "tracking.wandb=disabled", "run.tag=cell"]
    done = train(root, *cells)
    assert done.returncode == 0, done.stderr[-3000:]
    found = sorted(root.glob("nano-cell-*"))
    dtypes = {yaml.safe_load((cell / "config.yaml").read_text())["optim"]["mu_dtype"] for cell in found}
    assert len(found) == 2 and dtypes == {"float32", "bfloat16"}
    assert all(events(cell)[-1]["event"] == "finished" for cell in found)


def test_two_starts_on_one_directory(root: Path) -> None:
    options = ("run.tag=twice", "tracking.wandb=disabled", "train.steps=100000")
    first = subprocess.Popen(command(root, *options), stderr=subprocess.DEVNULL, env=environment(), cwd=root)
    try:
        while (directory := find(root, "twice")) is None or not (directory / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        second = train(root, *options)
        assert second.returncode == 2 and f"pid {first.pid}" in second.stderr and "run.tag" in second.stderr
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


@pytest.mark.slow
def test_damage_is_refused_with_one_message_and_nothing_is_lost(root: Path, unbroken: Path) -> None:
    options = ("run.tag=hurt", "tracking.wandb=disabled")
    assert train(root, *options, "run.stop_at=30").returncode == 0
    directory = find(root, "hurt")
    assert directory is not None

    def refused(path: Path, content: bytes, *parts: str) -> None:
        before = path.read_bytes()
        path.write_bytes(content)
        done = train(root, *options)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
        assert all(part in done.stderr for part in (str(path.name), *parts)), done.stderr
        assert path.read_bytes() == content
        path.write_bytes(before)

    frozen = (directory / "config.yaml").read_bytes()
    refused(directory / "metrics.jsonl", b"", "rows up to update 30 differ by -")
    refused(directory / "evals.jsonl", b"\xff\xfe", "rows up to update 30 differ by -")
    refused(directory / "config.yaml", frozen.replace(b"lr: 0.002", b"lr: 0.5"), "optim.lr=0.002", "edited")
    refused(directory / "config.yaml", b"a: [", "line 1")
    index = directory / "checkpoints" / "30" / "state" / "manifest.ocdbt"
    whole, _ = index.read_bytes(), index.write_bytes(b"x")
    done = train(root, *options)
    assert done.returncode == 2 and "checkpoint 30 is damaged: state/manifest.ocdbt" in done.stderr, done.stderr[-2000:]
    index.write_bytes(whole)
    checkpoints, elsewhere = directory / "checkpoints", root / "elsewhere"
    rows = (directory / "metrics.jsonl").read_bytes()
    checkpoints.rename(elsewhere)
    done = train(root, *options)
    assert done.returncode == 2 and "checkpoint 30 is gone" in done.stderr, done.stderr[-2000:]
    checkpoints.symlink_to(root / "not" / "mounted")
    done = train(root, *options)
    assert done.returncode == 2 and "is no folder, or a link to nothing" in done.stderr, done.stderr[-2000:]
    assert (directory / "metrics.jsonl").read_bytes() == rows
    checkpoints.unlink()
    checkpoints.symlink_to(elsewhere)
    assert train(root, *options).returncode == 0
    assert_identical(directory, unbroken)
