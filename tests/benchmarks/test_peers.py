"""`python -m benchmarks.peers`: workers in turns, what their numbers become, whether peers train our model."""

import ast
import json
import signal
import sys
import time
import xml.etree.ElementTree as ET
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import programs, view
from benchmarks.peers.jobs import CELLS, job, num_params
from benchmarks.peers.measure import agreement, measure
from benchmarks.peers.programs import INSTALL, PROGRAMS, ROOT, Worker, WorkerFailed, interpreter
from benchmarks.peers.summary import difference, summary
from benchmarks.peers.worker import batches_of
from olmo_hydra.config.compose import compose
from tests.components import require_component

PEERS = [name for name in PROGRAMS if name != "ours"]
FOLDER = ROOT / "benchmarks" / "peers"
SMALL = {"d_model": 64, "n_heads": 2, "head_dim": 32, "d_ff": 96, "vocab_size": 512, "window": 16}


def small_job(weights: str, **changed):
    model = CELLS["tiny"][0] | SMALL | {"norm_eps": 1e-6}
    return job("tiny", weights, model=model, batch=4, seq_len=64, **changed)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("weights") / "weights.npz")


@pytest.fixture(scope="module")
def ours(weights, tmp_path_factory):
    worker = Worker("ours", small_job(weights), tmp_path_factory.mktemp("log") / "ours.log")
    yield worker
    worker.close()


def test_a_worker_updates_when_it_is_told_to(ours) -> None:
    assert ours.loaded["num_params"] == num_params(small_job("")["model"])
    first, second = ours.turn(2), ours.turn(1)
    assert (len(first["losses"]), len(second["losses"])) == (2, 1)
    losses = [*ours.loaded["losses"], *first["losses"], *second["losses"]]
    assert abs(losses[0] - np.log(512)) < 0.1 and losses[-1] < losses[0] - 0.1
    assert first["seconds"] > 0 and first["cpu_seconds"] > 0


def test_weights_have_public_names(ours, weights) -> None:
    with np.load(weights) as found:
        assert sum(array.size for array in found.values()) == ours.loaded["num_params"]
        assert found["model.layers.3.mlp.up_proj.weight"].shape == (96, 64)
        assert found["model.embed_tokens.weight"].std() == pytest.approx(0.02, rel=0.1)


def test_a_worker_that_cannot_do_its_job_says_why(weights, tmp_path) -> None:
    with pytest.raises(WorkerFailed, match=r"hardware\.micro_batch"):
        Worker("ours", small_job(weights, overrides=["hardware.micro_batch=-1"]), tmp_path / "log")


def test_a_worker_that_takes_too_long_is_ended(weights, tmp_path) -> None:
    with pytest.raises(WorkerFailed, match="was ended after 0 s"):
        Worker("ours", small_job(weights), tmp_path / "log", until=time.monotonic())


def test_every_question_has_what_is_left_of_the_time(tmp_path, monkeypatch) -> None:
    """Of 1500 s, loading takes 400, and a turn 700: the second turn has 400 left. No answer may take more than 1200."""
    echo = tmp_path / "echo"
    echo.write_text("#!/bin/sh\nwhile read -r line; do echo '{}'; done\n")
    echo.chmod(0o755)
    clock, asked = SimpleNamespace(now=50.0), []

    class Alarm:
        def __init__(self, seconds: float, kill) -> None:
            asked.append(seconds)
            self.start = self.cancel = lambda: None

    monkeypatch.setattr(programs, "interpreter", lambda name: echo)
    monkeypatch.setattr(programs, "Timer", Alarm)
    monkeypatch.setattr(programs, "time", SimpleNamespace(monotonic=lambda: clock.now))
    worker = Worker("ours", {}, tmp_path / "log", until=1550.0)
    for seconds in (400, 700):
        clock.now += seconds
        worker.turn(1)
    worker.close()
    assert asked == [1200, 1100, 400]


def test_a_worker_that_does_not_end_by_itself_is_ended(tmp_path, monkeypatch) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\nread -r line; echo '{}'; exec sleep 600\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(programs, "interpreter", lambda name: deaf)
    worker = Worker("ours", {}, tmp_path / "log")
    worker._until = time.monotonic()
    worker.close()
    assert worker._process.returncode == -signal.SIGKILL


class Scripted:
    """A worker whose turns take what it is told; in place of a number, it fails."""

    TURNS: ClassVar = {"ours": [1.0, 2.0, 4.0], "maxtext": [3.0, "it fell over", 3.0], "olmo_core": [2.0, 2.0, 2.0]}

    def __init__(self, name: str, job, log: Path) -> None:
        self.loaded = {"num_params": num_params(job["model"]), "losses": [5.0], "load_seconds": 0.0, "versions": {}}
        self._turns = iter(self.TURNS[name])

    def turn(self, steps: int):
        seconds = next(self._turns)
        if isinstance(seconds, str):
            raise WorkerFailed(seconds)
        return turn(seconds, seconds, steps)

    def close(self) -> None:
        pass


def test_a_peer_that_fails_in_a_turn_is_dropped_and_the_others_go_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.peers.measure.Worker", Scripted)
    lines = []
    names = ["ours", "maxtext", "olmo_core"]
    found = measure(names, small_job(""), rounds=3, steps=1, pause=0, logs=tmp_path, say=lines.append)
    assert found["maxtext"] == {"failed": "it fell over"} and "  it fell over" in lines
    assert [len(found[name]["turns"]) for name in ("ours", "olmo_core")] == [3, 3]
    assert found["olmo_core"]["times"] == {"median": 1, "min": 0.5, "max": 2}
    assert "it fell over" in view.table({"maxtext": found["maxtext"]})


def test_nothing_is_left_where_ours_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.peers.measure.Worker", Scripted)
    monkeypatch.setitem(Scripted.TURNS, "ours", ["no"])
    with pytest.raises(WorkerFailed, match="no"):
        measure(["ours", "olmo_core"], small_job(""), rounds=1, steps=1, pause=0, logs=tmp_path, say=print)


@pytest.mark.parametrize(
    ("typed", "here", "status"),
    [
        ("--programs olmo_core,maxtext", ("olmo_core", "maxtext"), 0),
        ("--programs olmo_core,maxtext", ("olmo_core",), 1),
        ("--programs olmo_core", (), 1),
        ("--programs ours", (), 1),
        ("", (), 1),
    ],
)
def test_a_check_that_compared_less_than_was_asked_says_so(typed, here, status, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("benchmarks.peers.measure.Worker", Scripted)
    monkeypatch.setattr(command, "interpreter", lambda name: Path("python") if name in here else None)
    monkeypatch.setattr(sys, "argv", ["peers", "--check", "--out", str(tmp_path), *typed.split()])
    assert command.main() == status
    printed = capsys.readouterr()
    absent = {*(typed.partition(" ")[2].split(",") if typed else PEERS)} - {*here, "ours"}
    assert all(f"{name} is not in" in printed.out for name in absent)
    assert ("no peer to compare" in printed.err) == (not here)


@pytest.mark.parametrize("quiet", [True, False])
def test_results_say_whether_the_machine_was_quiet(quiet: bool, tmp_path, monkeypatch, capsys) -> None:
    here = {"quiet": quiet, "cpus": 2, "load": (3.0, 1.0, 1.0), "others_busy_cores": 1.25}
    monkeypatch.setattr("benchmarks.peers.measure.Worker", Scripted)
    monkeypatch.setattr(command, "interpreter", lambda name: Path("python"))
    monkeypatch.setattr(command.machine, "found", lambda: here)
    monkeypatch.setattr(
        sys, "argv", ["peers", "--out", str(tmp_path), "--programs", "olmo_core", "--rounds=1", "--pause=0"]
    )
    assert command.main() == 0
    assert json.loads((tmp_path / "tiny.json").read_text())["machine"]["quiet"] is quiet
    said = capsys.readouterr().out
    assert ("NOT QUIET: others keep 1.25 of 2 cores busy, load 3.0" in said) == (not quiet)


def test_batches_are_the_same_everywhere() -> None:
    what = small_job("")
    one, other = (list(islice(batches_of(what), 5)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    tokens_BT, labels_BT = one[0]
    np.testing.assert_array_equal(tokens_BT[:, 1:], labels_BT[:, :-1])
    assert (one[0][0] != one[1][0]).any() and (one[0][0] == one[4][0]).all()
    assert tokens_BT.min() >= 0 and tokens_BT.max() < 512
    assert tokens_BT[0, :6].tolist() == [84, 2, 0, 0, 223, 355]  # drawn with NumPy 2.5.5 in MaxText's environment


@pytest.mark.parametrize("cell", CELLS)
def test_cells_are_of_the_size_they_say(cell: str) -> None:
    from benchmarks.peers.adapters.ours import overrides

    what = job(cell, "")
    params = compose(overrides(what)).model.num_params
    assert params == num_params(what["model"]) == {"tiny": 7_409_920, "50m": 50_872_832}[cell.removesuffix("_bf16")]


def turn(seconds: float, cpu_seconds: float, steps: int = 2):
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": [1.0] * steps}


TURNS = {
    "ours": [turn(1, 2), turn(2, 2), turn(4, 3)],
    "maxtext": [turn(3, 4), turn(2, 4), turn(2, 3, steps=1)],
}


def test_numbers_become_medians_and_ratios_of_rounds() -> None:
    found = summary(TURNS, tokens_per_step=100)
    assert found["ours"]["tokens_per_second"] == {"median": 100, "min": 50, "max": 200}
    assert found["maxtext"]["cpu_seconds"] == {"median": 2, "min": 2, "max": 3}
    assert found["maxtext"]["times"] == {"median": 1, "min": 1, "max": 3}
    assert found["maxtext"]["times_by_cpu"] == {"median": 2, "min": 2, "max": 2}
    assert "times" not in found["ours"]


def test_another_model_is_told() -> None:
    what = small_job("")
    ours = {"num_params": num_params(what["model"]), "losses": [5.0, 4.0]}
    assert difference([5.0, 4.002], [5.0, 4.0]) == pytest.approx(5e-4)
    assert agreement(ours | {"losses": [5.0, 4.0004]}, ours, what)["same_model"]
    assert not agreement(ours | {"losses": [5.0, 4.002]}, ours, what)["same_model"]
    assert agreement(ours | {"losses": [5.0, 4.002]}, ours, what | {"compute_dtype": "bfloat16"})["same_model"]
    assert not agreement(ours | {"num_params": 1}, ours, what)["same_model"]
    assert not agreement(ours | {"losses": [5.0, float("nan")]}, ours, what)["same_model"]


def test_the_table_and_the_picture_show_every_program() -> None:
    more = {"loss_difference": 1e-7, "same_model": True, "versions": {"jax": "1"}}
    programs = {name: {"turns": TURNS[name], **more, **found} for name, found in summary(TURNS, 100).items()}
    programs |= {"olmo_core": {"failed": "it ended"}}
    lines = view.table(programs).splitlines()
    assert len(lines) == 5 and "| 100 (50 to 200) | 1.00 (1.00 to 1.50) |" in lines[2] and "it ended" in lines[4]
    svg = ET.fromstring(view.picture(programs, 100, "a & b"))
    dots = svg.findall("{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 6 and all(view.LEFT < float(dot.attrib["cx"]) < view.WIDTH for dot in dots)


def imports(file: Path) -> set[str]:
    """Full names of what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("peer", [*PEERS, "torch_step"])
def test_adapters_of_peers_import_nothing_of_ours(peer: str) -> None:
    ours = {
        name for name in imports(FOLDER / "adapters" / f"{peer}.py") if name.startswith(("olmo_hydra", "benchmarks"))
    }
    assert all(name.startswith(("benchmarks.peers.worker.", "benchmarks.peers.adapters.torch_step.")) for name in ours)


def test_a_worker_needs_numpy_alone() -> None:
    assert {name.split(".")[0] for name in imports(FOLDER / "worker.py")} <= {*sys.stdlib_module_names, "numpy"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("peer", PEERS)
def test_peers_train_the_same_model(peer: str, dtype: str, tmp_path) -> None:
    """From the same weights, the losses of three updates; with a window and with accumulation."""
    require_component(peer, interpreter(peer) is not None, f"{INSTALL} {peer}")
    what = small_job(str(tmp_path / "weights.npz"), compute_dtype=dtype, micro_batch=2)
    found = measure(["ours", peer], what, rounds=0, steps=1, pause=0, logs=tmp_path, say=print)
    assert found[peer].get("same_model"), found[peer]
