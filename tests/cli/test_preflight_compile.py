"""`olmo-hydra preflight --compile` around a compiler that is made up: what is said, when, and of which memory."""

import json
from types import SimpleNamespace

import pytest

from olmo_hydra.cli import preflight_compile
from olmo_hydra.cli.main import main
from olmo_hydra.hardware.ahead import Compiled, OutOfMemory
from olmo_hydra.hardware.hlo import Estimate
from tests.components import require_libtpu

GIB, MIB = 2**30, 2**20
TYPED = ("preflight", "--compile", "hardware=v5e", "hardware.chips=1")
FITS = Compiled(1.0, 2.0, GIB, 0, 2 * GIB, 0, Estimate({"update": 1_500_000}, [], [], [], []))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    require_libtpu()
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Answers what `answers` says, in turn, the last one for ever; `saw` gets each config."""
    made = SimpleNamespace(answers=[FITS], saw=[], before=lambda: None)

    def compile_for(lowered, cfg):
        made.before()
        answer = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lower_for(config, devices):
        made.saw.append(config)
        return None

    monkeypatch.setattr(preflight_compile, "lower_for", lower_for)
    monkeypatch.setattr(preflight_compile.ahead, "compile_for", compile_for)
    monkeypatch.setattr(preflight_compile.ahead, "available", lambda device: 15 * GIB)
    return made


TOO_MUCH = OutOfMemory("hbm", 40 * GIB, int(15.75 * GIB))
NO_VMEM = OutOfMemory("vmem", 24 * MIB, 16 * MIB)


def test_the_facts_stand_there_before_the_compiler_begins(compiler, capsys) -> None:
    early = []
    compiler.before = lambda: early.append(capsys.readouterr().out)
    assert main([*TYPED]) == 0
    assert early[0].startswith("run             nano-") and "compiled " not in early[0]
    assert capsys.readouterr().out.startswith("compiled        for v5e:1x1, 1 devices, in 1 s")


def test_json_is_one_object(compiler, capsys) -> None:
    assert main([*TYPED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compiled"]["memory"] | {"needed": 3 * GIB, "left": 12 * GIB} == found["compiled"]["memory"]


def test_a_device_with_too_little_memory(compiler, capsys) -> None:
    compiler.answers = [TOO_MUCH]
    assert main([*TYPED]) == 1
    printed = capsys.readouterr()
    missing = "does not fit: needs 40.00 GiB of a device's memory, which has 15.75 GiB: 24.25 GiB too much"
    assert missing in printed.out and f"failed: {missing}\n" in printed.err
    assert "--fit searches for the smallest change" in printed.out


def test_no_change_that_fits(compiler, capsys) -> None:
    """The sentence once read as if the run did fit, without rematerialisation."""
    compiler.answers = [TOO_MUCH]
    assert main([*TYPED, "--fit"]) == 1
    out = capsys.readouterr().out
    assert "does not fit with any hardware.remat and micro-batch: more devices" in out and "\nfits " not in out


def test_a_change_that_fits(compiler, capsys) -> None:
    compiler.answers = [TOO_MUCH, FITS]
    assert main([*TYPED, "hardware.remat=none", "hardware.micro_batch=1", "--fit", "--json"]) == 1
    fit = json.loads(capsys.readouterr().out)["compiled"]["fit"]
    assert (fit["instead"], fit["tried"]) == ("hardware.remat=none hardware.micro_batch=16", 1)  # a whole share first


def test_fit_says_that_it_searches_no_other_memory(compiler, capsys) -> None:
    compiler.answers = [NO_VMEM]
    assert main([*TYPED, "--fit"]) == 1
    assert len(compiler.saw) == 1
    missing = "needs 24.00 MiB of a kernel's scoped memory on the chip (VMEM), which has 16.00 MiB: 8.00 MiB too much"
    printed = capsys.readouterr()
    assert missing in printed.out and f"{missing}; --fit searches for a device's memory only" in printed.err
    assert main([*TYPED]) == 1 and "--fit" not in capsys.readouterr().err


def test_a_sweep_says_which_memory_a_cell_lacks(compiler, capsys, tmp_path) -> None:
    compiler.answers = [NO_VMEM, FITS]
    assert main([*TYPED, "--sweep", "head_dim"]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert ["model.head_dim=32", "does", "not", "fit"] in [line.split() for line in lines]
    (said,) = [line for line in lines if line.startswith("model.head_dim=32 does not fit: needs 24.00 MiB of a kernel")]
    assert "(VMEM), which has 16.00 MiB: 8.00 MiB too much" in said and "0.00 GiB" not in printed.out
    assert "model.head_dim=64" in (tmp_path / "sweep_head_dim.html").read_text()
    assert printed.err == "failed: does not fit: model.head_dim=32\n"


def test_where_no_cell_fits_nothing_is_drawn(compiler, capsys, tmp_path) -> None:
    compiler.answers = [TOO_MUCH]
    assert main([*TYPED, "--sweep", "head_dim"]) == 1
    assert "plot" not in capsys.readouterr().out and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["model.head_dim=32,64,96", "hardware=v5e,cpu"])
def test_a_wrong_cell_is_found_before_the_first_is_compiled(wrong: str, compiler, capsys) -> None:
    assert main([*TYPED, "--sweep", "head_dim", wrong]) == 2
    assert compiler.saw == [] and capsys.readouterr().out == ""


def test_a_cell_is_shown_as_it_is_typed(compiler, capsys) -> None:
    """Brackets are no markup of rich's."""
    assert main([*TYPED, "--sweep", "head_dim", "model.head_dim=32", "model.window_pattern=[full],[sliding,full]"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[1] for words in lines if words[:1] == ["model.head_dim=32"]] == [
        "model.window_pattern=[full]",
        "model.window_pattern=[sliding,full]",
    ]
