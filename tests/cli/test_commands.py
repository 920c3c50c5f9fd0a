"""The commands around training, in-process: what they print, and how they refuse."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import CONF
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir

SEVEN_B = ("model=olmo3_7b", "hardware=cpu", "data.seq_len=8192")


@pytest.fixture(autouse=True)
def hydra_full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command changes this variable of its process; the next test finds it as a shell has it."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str):
    """The one JSON value that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_preflight_of_olmo3_7b(capsys) -> None:
    """Parameters as OLMo-core counts them; FLOPs as AI-Hypercomputer/maxtext 0.2.5 does, which has no padded rows."""
    found = answered(capsys, "preflight", *SEVEN_B)
    assert found["parameters"] == 7_298_617_344
    assert found["parameters"] - found["parameters_without_input_table"] == 100_352 * 4096
    padding = 6 * (100_352 - 100_278) * 4096
    per_token = found["train_flops_per_token_full_causal"] - padding
    assert per_token * 4 * 8192 / 1e12 == pytest.approx(1565.10, abs=0.01)
    assert (found["train_flops_per_token"] - padding) * 4 * 8192 / 1e12 == pytest.approx(1525.5, abs=0.05)
    assert found["train_flops"] == found["train_flops_per_token"] * found["tokens"]
    assert found["at_40_percent_mfu"] is found["bound"] is None and found["hbm_bytes_per_device"] is None
    assert found["state_bytes_per_device"] == 12 * found["parameters"]


def test_preflight_where_the_hardware_is_not(capsys) -> None:
    """The published peak of a chip of two devices is 2307 TFLOP/s; four chips at 40 % of it."""
    found = answered(capsys, "preflight", "model=olmo3_7b", "hardware=ironwood", "train.global_batch=16")
    assert found["devices"] == 8 and found["mesh"] == {"data": 1, "fsdp": 8, "context": 1, "tensor": 1}
    assert found["accumulation"] * found["instances_per_device_and_micro_batch"] * 8 == 16
    days = found["train_flops"] / (0.4 * 4 * 2307e12) / 86400
    assert found["at_40_percent_mfu"]["days"] == pytest.approx(days)
    assert found["at_40_percent_mfu"]["chip_hours"] == pytest.approx(days * 24 * 4)
    assert found["at_40_percent_mfu"]["cost"] is None
    at_best = found["bound"]
    assert at_best["mfu"] == pytest.approx(0.4 * days / at_best["days"])
    assert sum(part["seconds"] for part in at_best["parts"]) == pytest.approx(
        at_best["seconds_computing"] + at_best["seconds_sending"]
    )
    assert found["hbm_bytes_per_device"] == 96 * 2**30
    norms = 32 * 4 * 4096 + 4096  # whole on every device
    assert found["state_bytes_per_device"] == 12 * (found["parameters"] - norms) // 8 + 12 * norms


def test_preflight_for_people(capsys) -> None:
    assert main(["preflight", *SEVEN_B]) == 0
    out = capsys.readouterr().out
    for text in ("7,298,617,344", "peak of the device unknown", "memory of the device unknown", "a layer at work"):
        assert text in out
    assert len(out.splitlines()) < 25


def test_preflight_of_a_recipe_on_its_hardware_for_people(capsys) -> None:
    """Four instances of 8192 tokens a device are 1525.5 TFLOP; here with the padded rows of the head."""
    typed = ("model=olmo3_7b", "hardware=ironwood", "hardware.topology=4x4x4", "data.seq_len=8192")
    assert main(["preflight", *typed, "train.global_batch=512", "hardware.chip.price_per_hour=2"]) == 0
    out = capsys.readouterr().out
    for text in (
        "64 chips as 4x4x4, 128 devices, 16 processes",
        "of a device 1.526e+15 an update",
        "matrix unit 50% full",
        "-> model.head_dim=256",
        "(another experiment)",
        "chip-hours, cost ",
    ):
        assert text in out, out
    assert max(map(len, out.splitlines())) < 160


def test_preflight_over_topologies(capsys) -> None:
    typed = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=512")
    assert main(["preflight", *typed, "--over", "2x2x1,64"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["topology", "chips", "devices"] and [line.split()[:2] for line in lines] == [
        ["2x2x1", "4"],
        ["4x4x4", "64"],
    ]
    found = answered(capsys, "preflight", *typed, "--over", "2x2x1,64")
    assert [each["devices"] for each in found] == [8, 128] and len({each["run"] for each in found}) == 1
    assert found[0]["bound"]["chip_hours"] == pytest.approx(found[1]["bound"]["chip_hours"], rel=0.02)


def test_preflight_imports_no_jax() -> None:
    program = "import sys; from olmo_hydra.cli.main import main; main(['preflight']); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CONF.parent)
    assert done.returncode == 0, done.stderr


TEXT = Path(sysconfig.get_path("stdlib")) / "email"


def text(root: Path) -> tuple[str, ...]:
    return f"run.root={root}", "data=text_files", f"data.domains.text.path={TEXT}", "data.domains.text.pattern=*.py"


def test_data_inspect(capsys, tmp_path: Path) -> None:
    overrides = text(tmp_path)
    found = answered(capsys, "data", "inspect", *overrides)
    sizes = [path.stat().st_size for path in TEXT.glob("*.py")]
    splits = [found["domains"]["text"][split] for split in ("train", "heldout")]
    kept = [size for size in sizes if size >= 200]
    assert sum(split["documents"] for split in splits) == len(kept)
    assert sum(split["bytes"] for split in splits) == sum(kept)
    assert answered(capsys, "data", "inspect", *overrides) == found

    assert main(["data", "prepare", *overrides]) == 0
    assert found["folder"] in (out := capsys.readouterr().out) and found["fingerprint"] in out


def test_data_inspect_reads_every_byte(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = text(tmp_path)
    file = Path(answered(capsys, "data", "prepare", *overrides)["folder"]) / "train" / "text" / "00000.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    assert main(["data", "inspect", *overrides]) == 2
    message = capsys.readouterr().err
    assert "damaged" in message and "train/text/00000.npy" in message and "rm -r" in message


def make_run(root: Path, name: str, *events: str, steps: int = 3, bits: float | None = None) -> RunDir:
    run_dir = RunDir(root / name)
    run_dir.path.mkdir()
    run_dir.config.write_text("{}\n")
    record = Record(run_dir)
    record.rewind(None)
    for step in range(1, steps + 1):
        record.metrics({"step": step, "loss": 1.0})
    if bits is not None:
        record.evaluation({"step": 0, "suite": "heldout", "bits_per_byte": 8.0, "domains": {}})
        record.evaluation({"step": steps, "suite": "heldout", "bits_per_byte": bits, "domains": {}})
        record.evaluation({"step": steps, "suite": "samples", "samples": []})
    for event in events:
        record.event(event, step=steps)
    return run_dir


@contextmanager
def written(run_dir: RunDir) -> Iterator[int]:
    """The run directory held by another process; gives its number."""
    program = (
        "import pathlib, sys; from olmo_hydra.tracking.run_dir import RunDir\n"
        "with RunDir(pathlib.Path(sys.argv[1])).lock(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(run_dir.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CONF.parent) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield holder.pid


def test_runs_and_their_states(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = round(np.random.default_rng().uniform(1, 3), 3)
    make_run(tmp_path, "done", "started", "checkpoint", "finished", bits=bits)
    make_run(tmp_path, "paused", "started", "checkpoint", "paused", steps=7)
    make_run(tmp_path, "stopped", "started", "interrupted")
    make_run(tmp_path, "preempted", "started", "preempted")
    make_run(tmp_path, "wrong", "started", "failed")
    make_run(tmp_path, "killed", "started", "checkpoint")
    make_run(tmp_path, "killed-again", "started", "paused", "resumed", "checkpoint")
    make_run(tmp_path, "at-once", steps=0)
    busy = make_run(tmp_path, "busy", "started", "paused", "resumed")
    (tmp_path / "cache").mkdir()  # no run
    with written(busy) as pid:
        rows = {row["run"]: row for row in answered(capsys, "runs", str(tmp_path))}
        monkeypatch.setenv("COLUMNS", "200")
        assert main(["runs", str(tmp_path)]) == 0
        table = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert f"pid {pid} " in table["busy"] and f"pid {pid} " in rows["busy"]["writer"]
    assert all(row["writer"] is None for name, row in rows.items() if name != "busy")
    assert {name: row["state"] for name, row in rows.items()} == {
        "busy": "Running",
        **{"done": "Finished", "paused": "Paused", "stopped": "Interrupted", "wrong": "Failed"},
        "preempted": "Preempted",
        **{"killed": "Killed", "killed-again": "Killed", "at-once": "Not started"},
    }
    assert (rows["done"]["step"], rows["done"]["bits_per_byte"]) == (3, bits)
    assert (rows["paused"]["step"], rows["paused"]["bits_per_byte"], rows["at-once"]["step"]) == (7, None, 0)
    assert table.keys() == rows.keys()
    assert rows["done"]["state"] in table["done"] and f"{bits:.3f}" in table["done"] and " s ago" in table["done"]


def test_no_runs(capsys, tmp_path: Path) -> None:
    assert answered(capsys, "runs", str(tmp_path)) == []


WRONG = [
    ("preflight model=3", ["model=3", "conf/model"]),
    ("preflight =3", ["=3", "no key"]),
    ("preflight +model=nano", ["model", "+ is for new keys", "model=nano"]),
    ("preflight model=olmo3_7", ["model=olmo3_7", "model=olmo3_7b"]),
    ("preflight head_dim", ["head_dim", "key=value"]),
    ("preflight model.head_dim=96", ["model.head_dim=96", "command line"]),
    ("preflight model.head_dim=32,64", ["model.head_dim=32,64", "sweep"]),
    ("preflight --fit", ["--fit", "--compile --fit"]),
    ("preflight --sweep head_dim", ["--sweep", "--compile --sweep head_dim"]),
    ("preflight --compile --over 2x2x1", ["--over", "--compile compiles one", "hardware.topology=4x4x4"]),
    ("preflight --compile --over=", ["--over", "--compile compiles one"]),
    ("preflight --compile --fit --sweep head_dim", ["--fit", "one run", "--compile --sweep head_dim, and then"]),
    ("preflight --compile --out here", ["--out", "--compile --sweep head_dim --out here"]),
    *(
        (f"preflight --compile --sweep={name}", ["--sweep", "one file of sweeps/", "--compile --sweep head_dim"])
        for name in ("", "head_dim,mu_dtype", "sweeps/head_dim.yaml")
    ),
    ("preflight --compile --sweep head_dims hardware=v5e", ["sweep=head_dims", "head_dim"]),
    ("preflight --compile", ["hardware=cpu", "libtpu compiles for TPUs only", "hardware=ironwood"]),
    ("preflight --over ,", ["--over", "names no topology", "2x2x1,4x4x4"]),
    ("preflight hardware=ironwood --over 2x2", ["hardware.topology=2x2:", "3 dimensions"]),
    ("data prepare +data=python_text", ["data", "+ is for new keys"]),
    ("data inspect data=text_files data.domains.text.path=/no/such", ["data.domains.text.path", "/no/such"]),
    ("data prepare run.root=/dev/null/runs", ["run.root", "/dev/null/runs"]),
    ("report {empty}", ["{empty}", "not a run directory", "olmo-hydra runs"]),
    ("report {empty}/absent", ["{empty}/absent", "not a run directory"]),
    ("runs {empty}/absent", ["{empty}/absent", "no such folder"]),
]


@pytest.mark.parametrize(("typed", "expected"), WRONG, ids=[typed for typed, _ in WRONG])
def test_wrong_requests(typed: str, expected: list[str], capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed.format(empty=tmp_path).split()) == 2
    printed = capsys.readouterr()
    for part in expected:
        assert part.format(empty=tmp_path) in printed.err
    assert len(printed.err.splitlines()) < 12 and "error: " in printed.err and printed.out == ""


@pytest.mark.parametrize("typed", ["", "prefligt", "data look", "preflight --jsn", "runs --json=3"])
def test_wrong_command_lines(typed: str, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(typed.split())
    assert left.value.code == 2
    assert "usage: olmo-hydra" in capsys.readouterr().err
