"""`python -m benchmarks.gpu`, as far as it can be tested without a card."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import gpu
from benchmarks.peers.programs import ROOT


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def test_without_a_gpu_it_ends_with_one_line() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "no GPU" in line and "--rehearse" in line


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("hardware, gib", [("h100", 79.6), ("h200", 140.4)])
def test_the_largest_stack_that_should_fit_comes_first(hardware: str, gib: float, remat: str) -> None:
    card = SimpleNamespace(rehearse=False, platform="gpu", hardware=hardware, gib=gib, overrides=list)
    jobs = list(gpu.sizes(card, remat))
    layers = [job["model"]["n_layers"] for job in jobs]
    assert layers[-1] == 4 and all(more - fewer == 4 for more, fewer in pairwise(layers))
    first, size = jobs[0], gpu.USABLE * gib * 2**30
    assert gpu.needed(first, first["micro_batch"]) <= size
    larger = first | {"model": first["model"] | {"n_layers": layers[0] + 4}}
    assert layers[0] == 32 or gpu.needed(larger, 1) > size


def test_nothing_starts_when_the_time_is_up(monkeypatch) -> None:
    started = []
    monkeypatch.setattr(gpu, "Worker", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(gpu.subprocess, "run", lambda *arguments, **more: started.append(arguments))
    card = SimpleNamespace(rehearse=True, platform="cpu", hardware="cpu", gib=1, overrides=list)
    assert "passed" not in gpu.checked("gpu_step", [], card, until=time.monotonic())
    assert gpu.speed(card, "full", until=time.monotonic()) == {"remat": "full"} and not started


def test_a_program_is_told_when_the_time_is_up(monkeypatch) -> None:
    given = []

    class Killed:
        def __init__(self, name: str, job, log, until: float) -> None:
            given.append(until)
            raise gpu.WorkerFailed("killed")

    monkeypatch.setattr(gpu, "Worker", Killed)
    until = time.monotonic() + 1000
    job = {"model": {"n_layers": 4}, "micro_batch": 1, "remat": "full"}
    assert gpu.attempt("ours", job, until) == {"failed": "killed"} and given == [until]


def test_recomputing_takes_less_memory() -> None:
    job = {"model": gpu.OLMO3_7B, "seq_len": 8192, "remat": "full"}
    assert 20 * 7_298_617_344 < gpu.needed(job, 1) < gpu.needed(job | {"remat": "none"}, 1)


@pytest.mark.slow
def test_a_rehearsal_goes_the_whole_way(tmp_path) -> None:
    done = run("--rehearse", "--remat", "full", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "cpu.json").read_text())
    assert all(check["passed"] for check in report["checks"].values())
    (speed,) = report["speed"]
    assert speed["micro_batch"] == 2 and len(speed["ours"]["turns"]) == gpu.ROUNDS
    assert "beside" not in speed or speed["beside"]["times"] > 0


@pytest.mark.slow
def test_a_wrong_window_is_found() -> None:
    """What the tolerance of `gpu_step` is for: half of the window moves gradients by more, and rounding by less."""
    import jax

    from benchmarks import gpu_step
    from benchmarks.peers.jobs import job

    right = job("tiny", None, batch=2, overrides=["optim.clip_norm=null"])
    wrong = right | {"model": right["model"] | {"window": right["model"]["window"] // 2}}
    cpu = jax.devices("cpu")[0]
    made = gpu_step.program(right, cpu)
    state = made.init()
    one, other = (gpu_step.update(gpu_step.program(what, cpu), state, what)["gradients"] for what in (right, wrong))
    apart = max(gpu_step.off(other[name], one[name]) for name in one)
    assert apart > gpu_step.TOLERANCE["gradient"] and np.isfinite(apart)
