"""Every config composes, derives the right values and has a stable identity."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from olmo_hydra.config.compose import compose, resolve
from olmo_hydra.config.identity import identity, plain, run_name, science
from olmo_hydra.config.init import InitConfig
from olmo_hydra.config.paths import CONF
from olmo_hydra.config.root import OPERATIONS, SCIENCE
from olmo_hydra.config.schedule import DoubleCosineConfig

ROOT = CONF.parent
GROUPS = ["model", "data", "optim", "schedule", "hardware", "eval", "checkpoint", "tracking"]


def options(folder: str) -> list[str]:
    return sorted(path.stem for path in (CONF / folder).glob("*.yaml"))


def needed(group: str, option: str) -> list[str]:
    """What an option leaves to the user."""
    if group != "data":
        return []
    if option.startswith("olmo3_"):  # a mix, of another tokenizer than nano's
        return ["~experiment", "train.steps=100", "model=olmo3_7b", "model.max_seq_len=65536"]
    of_dolma2 = "tokenizer: dolma2" in (CONF / "data" / f"{option}.yaml").read_text()
    return {
        "text_files": ["data.domains.text.path=/"],
        "mix": ["data.mix=mix.txt"],
        "tokens": ["+data.sources={web: {paths: [a.npy]}}"],
        "prepared": ["data.path=corpus"],
    }.get(option, []) + (["model.vocab_size=100278"] if of_dolma2 else [])


@pytest.mark.parametrize("choice", [f"{group}={option}" for group in GROUPS for option in options(group)])
def test_every_option_composes(choice: str) -> None:
    group, option = choice.split("=")
    config = compose([choice, *needed(group, option)])
    if hasattr(getattr(config, group), "name"):
        assert getattr(config, group).name == option


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes(experiment: str) -> None:
    assert compose([f"experiment={experiment}"]).train.steps


@pytest.mark.parametrize("sweep", options("sweep"))
def test_every_cell_of_every_sweep_composes(sweep: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra_compose("config", [f"sweep={sweep}"], return_hydra_config=True)
    axes = {key: values.split(",") for key, values in cfg.hydra.sweeper.params.items()}
    assert axes
    cells = [f"{key}={value}" for key, values in axes.items() for value in values]
    names = {run_name(compose([f"sweep={sweep}", cell])) for cell in cells}
    assert len(names) == len(cells)


def test_seven_billion() -> None:
    config = compose(["model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192"])
    assert config.model.num_params == 7_298_617_344  # allenai/OLMo-core, Transformer.num_params
    assert (config.model.n_heads, config.model.n_kv_heads, config.model.padded_vocab) == (32, 32, 100_352)
    wide = compose(["model=olmo3_7b", "model.head_dim=256"]).model
    assert wide.n_heads == 16 and wide.num_params == config.model.num_params
    assert (config.hardware.mesh.data, config.hardware.mesh.fsdp) == (1, 8)


def test_double_cosine_joint_of_olmo_3() -> None:
    """allenai/OLMo-core, OLMo-3-1025-7B-pretrain-2: the second cosine starts at step 597,046."""
    schedule = DoubleCosineConfig("double_cosine", 2000, 0.1, horizon=1_668_931, first_horizon=1_192_093)
    schedule.derive(1_413_814)
    assert schedule.joint == 597_046


def test_horizon_in_tokens_is_rounded_up_to_updates() -> None:
    config = compose(["train.steps=null", "train.tokens=1000000"])
    assert config.train.steps == 245 and config.train.tokens == 245 * 4096


def test_identity_is_science_only() -> None:
    base = compose([])
    same = ["hardware=cpu_sim", "eval.every=7", "checkpoint.every=9", "tracking.log_every=3", "run.stop_at=5"]
    other = ["model.window=32", "data.seq_len=128", "optim.b2=0.99", "schedule.warmup_steps=37", "train.seed=1"]
    assert {identity(compose([override])) for override in same} == {identity(base)}
    assert len({identity(compose([override])) for override in other} | {identity(base)}) == len(other) + 1
    assert identity(compose(["model.n_heads=2", "train.tokens=1474560"])) == identity(base)  # what was derived anyway
    assert {*SCIENCE, *OPERATIONS} == set(plain(base))


def test_where_files_lie_is_no_part_of_the_identity() -> None:
    typed = ["data=mix", "data.mix=mix.txt", "model.vocab_size=100278"]
    base = compose(typed)
    moved = compose([*typed, "data.root=s3://bucket", "data.keep_copies=false"])
    assert run_name(moved) == run_name(base) and science(moved) == science(base)
    assert not {"root", "keep_copies"} & set(science(base)["data"]) and plain(base)["data"].keys() >= {"root"}
    for other in ("data.mix=other.txt", "data.file_seed=1", "data.heldout_mix=val.txt"):
        assert identity(compose([*typed, other])) != identity(base)


def test_equal_requests_are_equal_configs() -> None:
    typed = ["init.from=run:before@3", "init.load=weights_and_moments"]
    assert compose(typed) == compose(typed) != compose([])
    assert [field.name for field in dataclasses.fields(InitConfig)] == ["from", "load"]
    assert "run:before@3" in repr(compose(typed))


def test_a_corpus_is_what_it_is_wherever_it_lies(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, fingerprint in (("corpus", "ab" * 32), ("moved", "ab" * 32), ("other", "cd" * 32)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"fingerprint": fingerprint}))
    (tmp_path / "none").mkdir()
    places = ("corpus", "./corpus", f"{tmp_path}/corpus", "moved", "other", "none", "absent")
    configs = {place: compose(["data=prepared", f"data.path={place}"]) for place in places}
    assert len({identity(configs[place]) for place in places[:4]}) == 1
    assert len({identity(configs[place]) for place in ("corpus", "other", "none")}) == 3
    recorded = {place: plain(config)["data"]["corpus"] for place, config in configs.items()}
    assert recorded["corpus"] == "ab" * 32 and recorded["absent"] is None
    (tmp_path / "none" / "manifest.json").write_text("[]")
    assert plain(compose(["data=prepared", "data.path=none"]))["data"]["corpus"] is None


def test_identity_does_not_move() -> None:
    """The name of the default run. It changes when the nano recipe or a science field changes: say so in the
    changelog, since runs that were started before are then other runs."""
    assert run_name(compose([])) == "nano-c34b67c7"
    assert run_name(compose(["run.tag=again"])) == "nano-again-c34b67c7"


def test_frozen_config_composes_to_itself(tmp_path: Path) -> None:
    frozen = yaml.safe_load(yaml.safe_dump(plain(compose(["optim=adamw"]))))
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra_compose("config", ["optim=adamw"])
    cfg.merge_with(frozen)
    assert plain(resolve(cfg)) == frozen


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["--help"], ["--info", "defaults"]])
def test_config_commands_import_no_jax(arguments: list[str]) -> None:
    code = f"import sys, runpy; sys.argv = {['train.py', *arguments]!r}\n"
    code += f"try: runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
    code += "except SystemExit as stop: assert not stop.code, stop.code\n"
    code += "heavy = {'jax', 'flax', 'optax', 'orbax', 'grain', 'wandb', 'numpy'} & set(sys.modules)\n"
    code += "assert not heavy, heavy\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)
