"""Wrong requests: each is refused with one short message that names the key, the place and what would be right."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.explain import explain
from olmo_hydra.config.paths import CONF

ROOT = CONF.parent

TOKENS = "data=tokens model.vocab_size=100278"
# (overrides, what the message must contain)
WRONG = [
    ("model.head_dmi=256", ["model.head_dmi", "command line: model.head_dmi=256", "instead: model.head_dim"]),
    ("model=olmo3_7", ["model=olmo3_7", "command line: model=olmo3_7", "instead: model=olmo3_7b"]),
    ("optim.mu_dtype=bf61", ["optim.mu_dtype=bf61", "float32, bfloat16"]),
    ("model.head_dim=96", ["model.head_dim=96", "model.d_model=128", "32 or 64 or 128"]),
    ("model.head_dim=33 model.n_heads=4", ["model.head_dim=33", "even"]),
    ("model.n_layers=6", ["model.n_layers=6", "model.n_layers=4 or 8"]),
    ("model.n_layers=0", ["model.n_layers=0", "positive"]),
    ("model.window_pattern=[]", ["model.window_pattern=[]", "at least one"]),
    ("model.window_pattern=[slidng]", ["slidng", "model.window_pattern=sliding"]),
    ("model.n_kv_heads=3", ["model.n_kv_heads=3", "model.n_heads=2"]),
    ("model.d_model=1e3", ["model.d_model=1000.0", "a whole number"]),
    ("model.yarn_factor=0.5", ["model.yarn_factor=0.5", "at least 1"]),
    ("model.yarn_factor=8 model.rope_theta=1", ["model.rope_theta=1.0", "above 1", "model.yarn_factor=null"]),
    ("model.yarn_beta_slow=40", ["model.yarn_beta_fast=32", "model.yarn_beta_slow=40"]),
    ("model.init_method=xavier", ["model.init_method=xavier", "one of normal, fan_in, llama"]),
    ("hardware.offload=[q]", ["hardware.offload=[q]", "hardware.remat=none", "hardware.remat=minimal_with_context"]),
    ("hardware.remat=full hardware.offload=[q,k,q]", ["hardware.offload=[q,k,q]", "twice", "hardware.offload=[q,k]"]),
    ("hardware.remat=full hardware.offload=[keys]", ["hardware.offload", "q, k, v, context"]),
    ("init.from=nowhere", ["init.from=nowhere", "no source of parameters", "run:RUN"]),
    ("init.from=run:", ["init.from=run:", "no source of parameters"]),
    ("init.form=run:x", ["init.form", "init.from"]),
    ("init.load=weights_and_moments", ["init.load=weights_and_moments", "init.from is null"]),
    ("init.from=hf:x init.load=weights_and_moments", ["init.load=weights_and_moments", "no moments"]),
    ("init.load=moments", ["init.load=moments", "weights_and_moments"]),
    ("data.instances=pack", ["data.instances=pack", "packed"]),
    ("data.pack_files=0", ["data.pack_files=0", "at least 1"]),
    ("schedule=double_cosine schedule.overlap=900", ["schedule.overlap=900", "schedule.overlap=0"]),
    ("model.name=null", ["model.name=null", "needs a value"]),
    ("model.vocab_size=200", ["model.vocab_size=200", "257"]),
    ("schedule.warmup_steps=0.001", ["schedule.warmup_steps=0.001", "a whole number of steps"]),
    ("schedule.warmup_steps=361", ["schedule.warmup_steps=361", "longer than the run (360 updates)"]),
    ("schedule.warmup_steps=-1", ["schedule.warmup_steps=-1", "negative"]),
    ("schedule.final_fraction=10", ["schedule.final_fraction=10", "fraction of the peak"]),
    ("schedule=wsd schedule.decay_steps=390", ["schedule.decay_steps=390", "324 steps"]),
    ("schedule=double_cosine schedule.first_horizon=900", ["schedule.first_horizon=900"]),
    ("train.global_batch=7 hardware.devices=4", ["train.global_batch=7", "fsdp=4", "train.global_batch=4 or 8"]),
    ("train.global_batch=0", ["train.global_batch=0"]),
    ("train.steps=null", ["train.steps=null", "no horizon"]),
    ("train.steps=true", ["train.steps=True", "a whole number"]),
    ("train.steps=", ["train.steps=", "a whole number"]),
    ("train.tokens=1000000", ["train.steps=360", "245 updates"]),
    ("train.seed=-1", ["train.seed=-1"]),
    ("train.skip_batches=[3,4]", ["train.skip_batches: is a list of lists", "train.skip_batches=[[3,4]]"]),
    ("train.skip_batches=[3]", ["train.skip_batches: is a list of lists", "train.skip_batches=[[3,3]]"]),
    (
        "train.skip_batches=[3,[5,6]]",
        ["train.skip_batches: is a list of lists", "train.skip_batches=[[3,3],[5,5],[6,6]]"],
    ),
    ("train.skip_batches=[[5,3]]", ["train.skip_batches=[[5,3]]", "no first and last", "train.skip_batches=[[3,5]]"]),
    ("train.skip_batches=[[3]]", ["no first and last update", "train.skip_batches=[[3,3]]"]),
    ("checkpoint.fixed_steps=[[1,2]]", ["checkpoint.fixed_steps"]),
    ("run.root=' '", ["run.root", "names no folder"]),
    ("train.skip_batches=[[true,2]]", ["no list of whole numbers"]),
    ("train.skip_batches=[[0,1]]", ["not inside the run", "1 to 360"]),
    ("train.skip_batches=[[360,361]]", ["not inside the run", "1 to 360"]),
    ("train.skip_batches=[[8,9],[2,3]]", ["none overlap", "train.skip_batches=[[2,3],[8,9]]"]),
    ("train.skip_batches=[[2,6],[4,5],[6,9]]", ["none overlap", "train.skip_batches=[[2,9]]"]),
    ("optim=adamw optim.max_consecutive_skips=0", ["optim.max_consecutive_skips=0", "at least 1"]),
    ("hardware.micro_batch=0", ["hardware.micro_batch=0", "at least 1"]),
    (
        "hardware.mesh.data=3",
        ["hardware.devices=1:", "multiple of 3", "data=3 x context=1", "hardware.devices=3, or"],
    ),
    (
        "hardware.mesh.fsdp=3",
        ["hardware.devices=1:", "fsdp=3 x context=1 x tensor=1", "hardware.devices=3, or -1"],
    ),
    ("hardware=cpu_sim hardware.devices=7 hardware.processes=2", ["hardware.processes=2", "hardware.devices=8, or"]),
    ("hardware.mesh.data=-1", ["hardware.mesh.fsdp=-1", "hardware.mesh.data is too", "hardware.mesh.fsdp=1"]),
    (
        "hardware=cpu_sim hardware.mesh.tensor=8 hardware.mesh.fsdp=1",
        ["hardware.mesh.tensor=8", "model.n_heads (2), model.n_kv_heads (2)", "tensor=2 hardware.mesh.fsdp=-1"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.tensor=4 model.n_heads=4 model.n_kv_heads=4 model.d_ff=6",
        ["hardware.mesh.tensor=4", "not divide model.d_ff (6)", "tensor=2 hardware.mesh.fsdp=-1"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.tensor=2 model.vocab_size=257 model.vocab_multiple=1",
        ["hardware.mesh.tensor=2", "model.vocab_multiple (257)", "hardware.mesh.tensor=1"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.tensor=2 hardware.processes=8",
        ["hardware.mesh.tensor=2", "the 1 device of a process", "hardware.mesh.tensor=1"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.context=4 hardware.processes=4",
        ["hardware.mesh.context=4", "2 devices of a process", "hardware.mesh.context=2"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.tensor=2 hardware.mesh.context=4 hardware.processes=2",
        ["hardware.mesh.context=4", "tensor=2 x context=4 does not divide the 4 devices", "hardware.mesh.context=2"],
    ),
    (
        "hardware=cpu_sim hardware.mesh.context=8 data.seq_len=250",
        ["data.seq_len=250", "two parts for each device along hardware.mesh.context=8", "data.seq_len=240 or 256"],
    ),
    (
        "hardware=cpu_sim hardware.slices=4 hardware.mesh.data=2",
        ["hardware.mesh.data=2", "no multiple of hardware.slices=4", "hardware.mesh.data=4 hardware.mesh.fsdp=-1"],
    ),
    ("hardware=cpu_sim hardware.slices=3", ["hardware.slices=3", "hardware.devices=8", "hardware.slices=1"]),
    ("hardware=h100 hardware.slices=2", ["hardware.slices=2: only TPUs", "of platform gpu", "hardware.slices=1"]),
    (
        "hardware=ironwood hardware.slices=2 hardware.chips=3 hardware.mesh.data=2 train.global_batch=6",
        ["hardware.slices=2", "equal parts of hardware.chips=3", "hardware.slices=1, or a multiple of 2 chips"],
    ),
    (
        "hardware=tpu hardware.slices=2 hardware.devices=6 hardware.processes=3 train.global_batch=6",
        ["hardware.processes=3", "whole parts of hardware.slices=2", "hardware.processes=2"],
    ),
    ("data.seq_len=4096", ["data.seq_len=4096", "model.max_seq_len=1024"]),
    ("data.seq_len=1", ["data.seq_len=1", "at least 2"]),
    ("data.heldout_fraction=0", ["data.heldout_fraction=0"]),
    ("data.domains.stdlib.sorce=1", ["data.domains.stdlib.sorce", "data.domains.stdlib.source"]),
    ("'+data.domains.mine={source: files}'", ["data.domains.mine", "'+data.domains={mine: "]),
    ("optim.lr=-1", ["optim.lr=-1.0", "positive"]),
    ("optim.lr=nan", ["optim.lr=nan", "finite"]),
    ("optim.lr=abc", ["optim.lr=abc", "a number"]),
    ("optim.lr=[1", ["cannot be read", "command line: optim.lr=[1"]),
    ("optim.b2=1", ["optim.b2=1", "[0, 1)"]),
    ("optim=adam", ["optim=adam", "optim=adamw"]),
    ("optim=adamw optim.window=3", ["optim.window", "one of the keys of optim"]),
    ("optim.clip_norm=???", ["optim.clip_norm=???", "no value"]),
    ("hardware.chip.peak_tflops=0", ["hardware.chip.peak_tflops=0", "positive"]),
    ("data.seq_len=0 train.tokens=100 train.steps=null", ["data.seq_len=0", "at least 2"]),
    ("train.steps=99999999999", ["train.steps=99999999999", "2^31"]),
    ("tracking.tags=x", ["tracking.tags", "is a list", "tracking.tags=[VALUE,VALUE]"]),
    ("~optim.lr", ["optim.lr", "cannot be removed", "command line: ~optim.lr"]),
    ("'hardware.compiler_options={a: b}'", ["hardware.compiler_options.a", "+hardware.compiler_options.a"]),
    ("+data.domains.new.source=stdlib", ["data.domains.new", "'+data.domains={new: "]),
    ("data=mix", ["data.mix=???", "conf/data/mix.yaml"]),
    ("data.tokenizer=gpt2", ["data.tokenizer=gpt2", "dolma2", "tokenizer.json"]),
    ("data.tokenizer=bpe:5", ["data.tokenizer=bpe:5", "258"]),
    ("data.max_target_seq_len=300", ["data.seq_len=256", "instead: data.max_target_seq_len=512"]),
    ("data.max_target_seq_len=512 data.instances=packed", ["data.max_target_seq_len=512", "data.instances=windows"]),
    ("data.document_positions=restarted", ["data.document_mask=true", "data.document_positions=continued"]),
    (f"{TOKENS}", ["data.sources=[]", "+data.sources={web: {paths: "]),
    (f"{TOKENS} data.sources.web.paths=[a]", ["data.sources.web", "'+data.sources={web: {key: value}}'"]),
    (f"{TOKENS} '+data.sources={{web: {{paths: []}}}}'", ["data.sources.web.paths=[]"]),
    (f"{TOKENS} '+data.sources={{a: {{paths: [a], ratio: 0.5}}, b: {{paths: [b]}}}}'", ["data.sources.b.ratio=null"]),
    (f"{TOKENS} '+data.sources={{a: {{paths: [a], ratio: inf}}}}'", ["data.sources.a.ratio=inf"]),
    (f"{TOKENS} '+data.sources={{a: {{paths: [a], ratio: 1, max_repetition: 0.5}}}}'", ["a.max_repetition=0.5"]),
    (f"{TOKENS} '+data.sources={{a: {{paths: [a], max_repetition: 3}}}}'", ["a.max_repetition=3", "a.ratio=0.5"]),
    (f"{TOKENS} '+data.sources={{a: {{paths: [a]}}}}' data.mixture_tokens=5", ["data.mixture_tokens=5", "ratio"]),
    (
        f"{TOKENS} '+data.sources={{a: {{paths: [a], ratio: 1}}}}' data.mixture_seed=-1",
        ["data.mixture_seed=-1", "[0, 2^32)"],
    ),
    ("model.d_model=99999999", ["model.head_dim=64", "a divisor"]),
    ("eval.every=0", ["eval.every=0", "at least 1"]),
    ("checkpoint.keep=0", ["checkpoint.keep=0"]),
    ("checkpoint.ephemeral_every=1000", ["checkpoint.ephemeral_every=1000", "less than checkpoint.every"]),
    ("checkpoint.fixed_steps=[0,5]", ["checkpoint.fixed_steps=[0,5]", "from 1"]),
    (
        "train.steps=40 checkpoint.fixed_steps=[40,41,50]",
        ["checkpoint.fixed_steps=[40,41,50]", "train.steps=40", "41, 50"],
    ),
    ("tracking.wandb=onlin", ["tracking.wandb=onlin", "tracking.wandb=online"]),
    ("run.tag=a/b", ["run.tag=a/b", "folder"]),
    ("run.stop_at=0", ["run.stop_at=0"]),
    ("run.name=${foo}", ["foo", "command line: run.name=${foo}"]),
    ("+model.head_dim=3", ["model.head_dim", "exists already", "without the +"]),
    ("+model=nano", ["model", "+ is for new keys", "model=nano"]),
    ("+model.foo=1", ["model.foo", "no such key", "d_model"]),
    ("+foo=1", ["foo", "no such key", "command line: +foo=1"]),
    ("foo=1", ["foo", "no such key", "keys of the run"]),
    ("modle=nano", ["modle", "instead: model"]),
    ("head_dim=64", ["head_dim", "instead: model.head_dim"]),
    ("head_dim", ["head_dim", "key=value"]),
    ("=3", ["no key"]),
    ("train=3", ["train", "group of keys", "train.KEY=VALUE"]),
    ("~model.head_dim", ["model.head_dim"]),
    ("~foo", ["foo", "no such key"]),
    ("experiment=nanoo", ["experiment=nanoo", "experiment=nano"]),
    ("model=3", ["model=3", "conf/model"]),
    ("hardware=null", ["hardware=null", "conf/hardware"]),
    ("model.head_dim=32,64", ["model.head_dim=32,64", "-m model.head_dim=32,64"]),
    ("hydra.job.nmae=3", ["hydra.job.nmae", "hydra.job.name"]),
]


def refusal(overrides: list[str]) -> str:
    with pytest.raises(Exception) as caught:
        compose(overrides)
    error = explain(caught.value, overrides)
    assert error is not None, f"not explained: {caught.value!r}"
    return str(error)


@pytest.mark.parametrize(("typed", "expected"), WRONG, ids=[typed for typed, _ in WRONG])
def test_wrong_request(typed: str, expected: list[str]) -> None:
    message = refusal(shlex.split(typed))
    for part in expected:
        assert part in message
    assert len(message.splitlines()) < 12 and "Traceback" not in message


FILES = {
    "typo": ("model: {head_dmi: 3}", ["model.head_dmi", "bad_typo.yaml", "model.head_dim"]),
    "group": ("defaults: [{override /model: nanoo}]", ["model=nanoo", "bad_group.yaml", "model=nano"]),
    "no_group": ("defaults: [{override /modle: nano}]", ["modle", "bad_no_group.yaml", "instead: model"]),
    "top": ("modle: {lr: 3}", ["modle", "bad_top.yaml", "instead: model"]),
    "type": ("optim: {lr: abc}", ["optim.lr=abc", "bad_type.yaml", "a number"]),
    "rule": ("train: {global_batch: 0}", ["train.global_batch=0", "bad_rule.yaml"]),
    "package": ("", ["_global_"]),
    "syntax": ("optim: {lr: 3", ["bad_syntax.yaml", "line", "not valid YAML"]),
}


@pytest.mark.parametrize("group", ["experiment", "sweep"])
@pytest.mark.parametrize("kind", FILES)
def test_wrong_file(group: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = copied_conf(tmp_path, monkeypatch)
    content, expected = FILES[kind]
    header = "" if kind == "package" else "# @package _global_\n"
    (conf / group / f"bad_{kind}.yaml").write_text(f"{header}{content or 'train: {seed: 1}'}\n")
    message = refusal([f"{group}=bad_{kind}"])
    for part in expected:
        assert part in message


def test_a_file_that_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied_conf(tmp_path, monkeypatch) / "experiment" / "binary.yaml").write_bytes(b"\xff\xfe\x00garb")
    assert "not UTF-8" in (message := refusal(["experiment=binary"])) and "experiment/binary.yaml" in message


def copied_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conf of one's own to spoil."""
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)  # follows conf/sweep
    for module in ("compose", "origin", "explain", "arguments"):
        monkeypatch.setattr(f"olmo_hydra.config.{module}.CONF", conf)
    return conf


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model.n_layers=6"], ["model.n_layers=6", "command line"]),
        (["--cfg", "job", "model.n_layers=6"], ["model.n_layers=6", "command line"]),
        (["-m", "model.head_dim=32,96"], ["model.head_dim=96", "command line: model.head_dim=32,96"]),
        (["-m", "sweep=hed_dim"], ["sweep=hed_dim", "sweep=head_dim"]),
        (["-m", "sweep=head_dim", "run.root=/dev/null/runs"], ["run.root", "/dev/null/runs", "cannot be written"]),
        (["sweep=head_dim"], ["sweep=head_dim", "-m sweep=head_dim"]),
        (["-m", "--cfg", "job"], ["--cfg"]),
        (["run.root=/dev/null/runs"], ["run.root", "/dev/null/runs"]),
        pytest.param(["optim.no_decay=[typo]"], ["optim.no_decay", "typo"], marks=pytest.mark.slow),
        (["data=text_files", "data.domains.text.path=/no/such/folder"], ["data.domains.text.path", "/no/such/folder"]),
        pytest.param(
            ["model=olmo3_7b", "hardware=ironwood"],
            ["found 1 cpu device", "8 tpu devices", "olmo-hydra preflight", "srun"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_exit_status_2_through_the_command(arguments: list[str], expected: list[str], tmp_path: Path) -> None:
    root = [] if any(argument.startswith("run.root") for argument in arguments) else [f"run.root={tmp_path}"]
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *arguments, *root], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    for part in expected:
        assert part in done.stderr
    errors = done.stderr[done.stderr.index("error:") :].splitlines()
    assert len(errors) < 12 and "Traceback" not in done.stderr
