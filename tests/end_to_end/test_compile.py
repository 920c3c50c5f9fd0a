"""`olmo-hydra preflight --compile` as it is typed: two layers on one chip; the slow ones on every TPU, and searches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from olmo_hydra.config.paths import CONF
from tests.components import require_libtpu

SMALL = ("model.n_layers=2", "model.window_pattern=[sliding]", "train.global_batch=4", "hardware.chips=1")


@pytest.fixture(autouse=True)
def libtpu() -> None:
    require_libtpu()


def preflight(*typed: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "olmo_hydra", "preflight", *typed, "--compile"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CONF.parent)
    assert done.returncode == status, done.stderr
    return done


def test_two_layers_on_one_chip() -> None:
    """Two devices, two micro-batches, a scan over two layers that runs in each of them, forward and backward."""
    done = preflight(*SMALL, "hardware=ironwood", "--json")
    found = json.loads(done.stdout)
    assert done.stderr == ""
    compiled = found["compiled"]
    assert compiled["fits"] and (compiled["target"], compiled["devices"]) == ("tpu7x:1x1x1", 2)
    assert found["accumulation"] == 2

    memory = compiled["memory"]
    tokens = 2 * 2 * 256 * 4  # and labels, of an instance in each of the micro-batches
    assert 0 <= memory["arguments"] - found["state_bytes_per_device"] - tokens < 0.1 * found["state_bytes_per_device"]
    needed = sum(memory[part] for part in ("arguments", "results", "temporaries", "code"))
    assert memory["needed"] == needed and memory["left"] == memory["available"] - needed
    assert memory["available"] == pytest.approx(94.74 * 2**30, rel=1e-3)

    loops = sorted((loop["times"], loop["trips"]) for loop in compiled["loops"])
    assert loops == [(1, 2), (2, 2), (2, 2)]
    kernels = [(kernel["name"], kernel["part"], kernel["times"]) for kernel in compiled["kernels"]]
    assert sorted(kernels) == [
        ("splash_mha_dkv_no_residuals", "blocks, backward", 4),
        ("splash_mha_dq_no_residuals", "blocks, backward", 4),
        ("splash_mha_fwd_residuals", "blocks, backward", 4),
        ("splash_mha_fwd_residuals", "blocks, forward", 4),
    ]
    assert {"blocks, forward", "blocks, backward", "head, forward", "update"} <= set(compiled["cycles"])
    assert compiled["cycles"]["blocks, backward"] > compiled["cycles"]["blocks, forward"] > 0
    assert {each["devices"] for each in compiled["collectives"]} == {2}

    update = compiled["update"]
    cycles = sum(compiled["cycles"].values()) / 2.2e9
    assert update["seconds_of_cycles"] == pytest.approx(cycles)
    assert update["seconds_in_turns"] == pytest.approx(
        cycles + update["seconds_of_kernels_by_roofline"] + update["seconds_sending"]
    )
    assert 0 < update["mfu_without_overlap"] < update["mfu"] < found["bound"]["mfu"]


def test_two_slices_and_what_the_roofline_says_that_they_send() -> None:
    """Two copies on four devices each, a micro-batch of two instances a device: what the compiler sends, by kind."""
    mesh = ("hardware=v5p", "hardware.chips=8", "hardware.slices=2", "hardware.mesh.data=2", "hardware.micro_batch=2")
    typed = (*SMALL, *mesh, "train.global_batch=16", "model.compute_dtype=bfloat16")
    found = json.loads(preflight(*typed, "--json").stdout)
    collectives, update = found["compiled"]["collectives"], found["compiled"]["update"]
    bound = {part["name"]: part for part in found["bound"]["parts"]}

    def sent(kind: str, part: str, over_slices: bool = False) -> float:
        wanted = (kind, part, over_slices)
        return sum(one["sent"] for one in collectives if (one["kind"], one["part"], one["over_slices"]) == wanted)

    layers, head = 2 * (4 * 128 * 128 + 3 * 128 * 384), 128 * 264
    assert sent("all-gather", "blocks, forward") == layers * 2 * 3 / 4 <= sent("all-gather", "blocks, backward")
    assert bound["gather weights"]["sent"] == (2 * layers + head) * 2 * 3 / 4
    for kind, name in (("all-to-all", "exchange lookup"), ("reduce-scatter", "scatter gradients")):
        assert sum(one["sent"] for one in collectives if one["kind"] == kind) == bound[name]["sent"]
    assert bound["scatter gradients"]["sent"] == (layers * 2 + head * 4) * 3 / 4
    norms = 2 * 2 * 4 * 128 * 4  # whole on every device
    assert 0 <= sent("all-reduce", "blocks, backward", over_slices=True) - layers / 4 * 2 <= norms
    assert bound["sum over slices"]["crossing"] == layers / 4 * 2 + 2 * head / 4 * 4

    over = [one for one in collectives if one["over_slices"]]
    crossing, within = (
        sum(one["sent"] for one in alike) for alike in (over, [o for o in collectives if o not in over])
    )
    assert {one["devices"] for one in over} == {2} and crossing >= bound["sum over slices"]["crossing"]
    assert update["seconds_sending"] == pytest.approx(within / 600e9 + crossing / 6.25e9)


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["v5p", "v6e", "v5e"])
def test_the_other_tpus_for_people(hardware: str) -> None:
    out = preflight(*SMALL, "data.document_mask=true", f"hardware={hardware}").stdout
    for text in (
        f"compiled        for {hardware}:1x1",
        "memory          fits: ",
        "% MFU",
        "splash_mha_fwd",
        "Nothing of",
    ):
        assert text in out, out
    assert max(map(len, out.splitlines())) < 160


@pytest.mark.slow
def test_too_much_and_the_smallest_change() -> None:
    """16411 instances at once, a prime number: one at a time is the only other way to divide them."""
    done = preflight(
        "hardware=v5e", "hardware.chips=1", "train.global_batch=16411", "hardware.micro_batch=null", status=1
    )
    assert "failed: does not fit: needs" in done.stderr and "memory, which has 15.75 GiB: " in done.stderr
    assert "-> hardware.micro_batch=1" in done.stdout and "-> --fit searches" in done.stdout
    typed = ("hardware=v5e", "hardware.chips=1", "train.global_batch=16411", "hardware.micro_batch=null")
    found = json.loads(preflight(*typed, "hardware.remat=full", "--fit", "--json", status=1).stdout)["compiled"]
    assert found["missing"] == found["needed"] - found["available"] > 0
    assert found["fit"]["instead"] == "hardware.remat=full hardware.micro_batch=1"
    assert found["fit"]["compiled"]["fits"] and found["fit"]["tried"] == 2


@pytest.mark.slow
def test_scoped_memory_of_a_kernel_is_another_answer() -> None:
    shape = ("model.d_model=256", "model.head_dim=256", "model.max_seq_len=4096", "data.seq_len=4096")
    limit = "hardware.compiler_options.xla_tpu_scoped_vmem_limit_kib=16384"
    done = preflight(*SMALL, *shape, "hardware=ironwood", limit, status=1)
    for text in ("VMEM", "16.00 MiB", "-> hardware.attention_block=1024", "xla_tpu_scoped_vmem_limit_kib=24576"):
        assert text in done.stdout, done.stdout
    assert "--fit" not in done.stdout


@pytest.mark.slow
def test_the_cells_of_an_ablation(tmp_path: Path) -> None:
    typed = (*SMALL, "hardware=v5p", "--sweep", "head_dim", "--out", str(tmp_path))
    out = preflight(*typed).stdout
    lines = [line.split() for line in out.splitlines() if line.startswith("model.head_dim=")]
    assert [line[0] for line in lines] == ["model.head_dim=32", "model.head_dim=64"]
    assert lines[1][2].endswith("%") and "Pallas kernels have none" in out and "Collectives have none" in out
    page = (tmp_path / "sweep_head_dim.html").read_text()
    assert "attention kernels, by roofline" in page and "model.head_dim=64" in page and 'src="http' not in page
    found = json.loads(preflight(*typed, "model.head_dim=64,128", "--json").stdout)
    assert [each["cell"] for each in found] == ["model.head_dim=64", "model.head_dim=128"]
