"""Conversions from folder to run and back: nothing changes, and nothing half-written is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import yaml

from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import compose
from olmo_hydra.config.identity import plain
from olmo_hydra.interop import safetensors
from olmo_hydra.interop.companions import Companions, companions
from olmo_hydra.interop.hf_weights import INDEX, HFWeights
from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.interop.weights import open_weights
from olmo_hydra.interop.write_hf import write_hf
from olmo_hydra.interop.write_run import write_run
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.state import State
from tests.train.tiny import NOTHING_READ, saving

SPECIAL = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": 4}
SHARD = 9000  # bytes: several files


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return {
        name: safetensors.read(entry)
        for file in folder.glob("*.safetensors")
        for name, entry in safetensors.header(file).items()
    }


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes()) == (t.dtype, t.shape, t.tobytes())
        for name, t in other.items()
    )


@pytest.fixture
def folder(in_memory, tmp_path) -> Path:
    """Random weights in several files, with a tokenizer."""
    path = tmp_path / "hf"
    (tmp_path / "tokenizer.json").write_text('{"made": "up"}')
    write_hf(in_memory(), path, Companions(SPECIAL, (tmp_path / "tokenizer.json",)), shard_bytes=SHARD)
    return path


def refused(capsys, *arguments: object) -> str:
    assert main(["convert", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ")
    return err


def test_names_and_orientation(folder, in_memory) -> None:
    """Outputs x inputs, layer l at position l mod period, as `docs/model.md` and transformers have them."""
    weights = in_memory(1)
    write_hf(weights, folder.with_name("one"), Companions({}))
    found = tensors(folder.with_name("one"))
    for layer in range(4):
        ours = weights.tensors[f"blocks.{layer % 2}.mlp.down.weight"][layer // 2]
        assert np.array_equal(found[f"model.layers.{layer}.mlp.down_proj.weight"], ours.T)
        ours = weights.tensors[f"blocks.{layer % 2}.attention_norm.weight"][layer // 2]
        assert np.array_equal(found[f"model.layers.{layer}.post_attention_layernorm.weight"], ours)
    assert np.array_equal(found["model.embed_tokens.weight"], weights.tensors["embedding.weight"])
    assert np.array_equal(found["lm_head.weight"], weights.tensors["head.weight"].T)
    assert len(found) == 4 * 11 + 3


def test_a_round_trip_changes_nothing(folder, tmp_path, capsys) -> None:
    assert main(["convert", "from-hf", str(folder), str(tmp_path / "run")]) == 0
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert same(tensors(tmp_path / "back"), tensors(folder))
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "hf", "run", "tokenizer.json"]

    capsys.readouterr()
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["state"], row["step"]) == ("run", "Weights", 0)
    assert main(["report", str(tmp_path / "run")]) == 0
    assert str(folder) in (tmp_path / "run" / "report.html").read_text()


def test_the_index_is_that_of_transformers(folder) -> None:
    index = json.loads((folder / INDEX).read_text())
    files = sorted(folder.glob("model-*"))
    assert [file.name for file in files] == [
        f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)
    ]
    assert len(files) > 3 and all(file.stat().st_size < SHARD + 4000 for file in files)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors(folder).values())
    assert index["weight_map"] == {name: file.name for file in files for name in safetensors.header(file)}


def test_dtypes_are_kept_or_asked_for(in_memory, tmp_path) -> None:
    weights = in_memory()
    brain = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in weights.tensors.items()}
    mixed = brain | {"final_norm.weight": weights.tensors["final_norm.weight"]}
    write_run(weights, tmp_path / "run", Companions({}), "here")
    full = weights.tensors
    for made, dtype in ((brain, "bfloat16"), (mixed, "float32")):
        weights.tensors = made
        write_run(weights, tmp_path / f"run-{dtype}", Companions({}), "here")
        run = RunWeights(RunDir(tmp_path / f"run-{dtype}"))
        assert same({name: run.read(name) for name in run.shapes}, made)
        write_hf(run, tmp_path / f"hf-{dtype}", Companions({}))
        found = HFWeights(tmp_path / f"hf-{dtype}")
        assert same({name: np.ascontiguousarray(found.read(name)) for name in found.shapes}, made)
        assert found.content["dtype"] == found.content["torch_dtype"] == dtype
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "half"), "--dtype", "float16"]) == 0
    halves = HFWeights(tmp_path / "half")
    assert halves.read("final_norm.weight").dtype == np.float16
    assert np.array_equal(halves.read("final_norm.weight"), full["final_norm.weight"].astype(np.float16))


def test_numbers_too_small_for_a_dtype_are_counted(in_memory, tmp_path, capsys) -> None:
    weights = in_memory()
    weights.tensors = {name: np.ones_like(tensor) for name, tensor in weights.tensors.items()}
    weights.tensors["final_norm.weight"][3:5] = 1e-9
    weights.tensors["blocks.0.mlp.up.weight"][1, 2, 3] = 1.23e-6
    write_run(weights, tmp_path / "run", Companions({}), "here")
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "half"), "--dtype", "float16"]) == 0
    assert "; 3 of them too small for float16, so that they became 0 or lost digits" in capsys.readouterr().out


def test_numbers_too_large_for_a_dtype_leave_nothing(in_memory, tmp_path, capsys) -> None:
    weights = in_memory()
    weights.tensors["final_norm.weight"][3] = 1e6
    write_run(weights, tmp_path / "run", Companions({}), "here")
    shown = refused(capsys, "to-hf", tmp_path / "run", tmp_path / "half", "--dtype", "float16")
    assert "model.norm.weight has numbers that are too large for float16" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_trained_checkpoint_without_its_padding(in_memory, tmp_path) -> None:
    """The whole train state is there: parameters are found in it, and every moment by its path."""
    weights = in_memory(vocab_multiple=64)
    config = compose(["data.tokenizer=bytes"])
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run_dir.config.write_text(yaml.safe_dump({**plain(config), "model": plain(weights.model)}))
    nested: dict = {}
    for name, tensor in weights.tensors.items():
        *folders, last = name.split(".")
        node = nested
        for part in folders:
            node = node.setdefault(part, {})
        node[last] = {"value": tensor}
    moment = np.arange(6.0, dtype=np.float32)
    checkpoints = Checkpoints(run_dir.checkpoints, saving(keep=2))
    for step in (5, 9):
        checkpoints.save(step, State(nested, {"mu": {"final_norm": moment * step}}), {"run": "here"}, *NOTHING_READ)
        checkpoints.wait(lambda *_, **__: None)
    checkpoints.close()

    run = RunWeights(run_dir)
    assert run.step == 9 and len(run.arrays) == len(weights.tensors) + 1
    assert np.array_equal(RunWeights(run_dir, 5).read_array("opt_state/mu/final_norm"), moment * 5)
    write_hf(run, tmp_path / "hf", companions(run))
    found = HFWeights(tmp_path / "hf")
    assert found.model.vocab_size == 50 and found.content["eos_token_id"] == 256
    assert np.array_equal(found.read("head.weight"), weights.tensors["head.weight"][:, :50])
    assert np.array_equal(found.read("embedding.weight"), weights.tensors["embedding.weight"][:50])


def test_places(folder, in_memory, tmp_path) -> None:
    for name in ("alpha-11111111", "alpha-22222222", "beta-33333333"):
        write_run(in_memory(), tmp_path / "runs" / name, Companions({}), "here")
    run = tmp_path / "runs" / "alpha-11111111"
    assert isinstance(open_weights(str(folder)), HFWeights)
    for place in (str(run), f"{run}@0", f"{run}/checkpoints/0"):
        assert open_weights(place).place == f"{run}@0"
    assert open_weights("alpha-11111111@0", run.parent).place == f"{run}@0"
    assert open_weights("beta", run.parent).place == f"{run.parent}/beta-33333333@0"
    for place, named in {
        "alpha": "several runs", "gamma": "a run of that name", str(tmp_path): "holds no weights",
        f"{run}@3": "no checkpoint 3, it has 0", f"{run}@x": "no whole number",
    }.items():  # fmt: skip
        with pytest.raises(Exception, match=named):
            open_weights(place, run.parent)


def edited(folder: Path, key: str, change) -> None:
    """`change` gives what stands in place of one tensor of a folder, by name."""
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    file = folder / weight_map[key]
    kept = {name: safetensors.read(entry) for name, entry in safetensors.header(file).items()}
    kept |= change(kept.pop(key))
    entries = safetensors.create(file, {name: (tensor.dtype, tensor.shape) for name, tensor in kept.items()})
    for name, entry in entries.items():
        safetensors.write(entry, kept[name])
    weight_map = {name: file for name, file in weight_map.items() if name != key} | dict.fromkeys(kept, file.name)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


UP = "model.layers.1.mlp.up_proj.weight"


def damage(folder: Path, kind: str) -> str:
    """Damages a folder; returns what a message has to say."""
    shards = sorted(folder.glob("model-*"))
    index = json.loads((folder / INDEX).read_text())
    if kind == "missing":
        edited(folder, UP, lambda tensor: {})
        return f"{UP} is missing (expected [40, 24])"
    if kind == "extra":
        edited(folder, UP, lambda tensor: {"model.layers.1.mlp.up_proj.bias": tensor[0].copy()})
        return "model.layers.1.mlp.up_proj.bias (F32 [24] in "
    if kind == "misshapen":
        edited(folder, UP, lambda tensor: {UP: tensor.T.copy()})
        return f"{UP} is F32 [24, 40] in {index['weight_map'][UP]}; expected [40, 24]"
    if kind == "integers":
        shards[0].write_bytes(shards[0].read_bytes().replace(b'"F32"', b'"I32"', 1))
        return "is I32 "
    if kind == "mixed":
        edited(folder, UP, lambda tensor: {UP: tensor.astype(np.float16)})
        return "have different dtypes"
    if kind == "truncated":
        shards[-1].write_bytes(shards[-1].read_bytes()[:-1])
        return shards[-1].name
    if kind == "no shard":
        shards[-1].unlink()
        return shards[-1].name
    if kind == "swapped":
        (folder / "other").write_bytes(shards[0].read_bytes())
        shards[0].write_bytes(shards[1].read_bytes())
        return "is in"
    if kind == "outside":
        target = folder.parent / "outside.safetensors"
        shutil.move(shards[-1], target)
        for name in index["weight_map"]:
            if index["weight_map"][name] == shards[-1].name:
                index["weight_map"][name] = "../outside.safetensors"
        (folder / INDEX).write_text(json.dumps(index))
        return "weight_map=../outside.safetensors: names a file outside of its folder"
    if kind == "absolute":
        index["weight_map"][UP] = str(shards[0])
        (folder / INDEX).write_text(json.dumps(index))
        return "names a file outside of its folder"
    if kind == "torn index":
        (folder / INDEX).write_text((folder / INDEX).read_text()[:50])
        return "is not JSON"
    if kind == "other config":
        content = json.loads((folder / "config.json").read_text())
        content |= {"num_hidden_layers": 2, "layer_types": content["layer_types"][:2]}
        (folder / "config.json").write_text(json.dumps(content))
        return "model.layers.2."
    if kind == "many layers":
        content = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 100_000_000}
        del content["layer_types"]
        (folder / "config.json").write_text(json.dumps(content))
        return "num_hidden_layers=100000000: is more than the 47 tensors"
    if kind == "deep config":
        (folder / "config.json").write_text('{"a":' * 100_000)
        return "is nested too deep"
    if kind == "pipe":
        shards[-1].unlink()
        os.mkfifo(shards[-1])
        return "is no regular file"
    assert kind == "no weights"
    for file in (*shards, folder / INDEX):
        file.unlink()
    return "neither model.safetensors nor"


@pytest.mark.parametrize(
    "kind",
    ["missing", "extra", "misshapen", "integers", "mixed", "truncated", "no shard", "swapped", "outside", "absolute",
     "torn index", "other config", "many layers", "deep config", "pipe", "no weights"],
)  # fmt: skip
def test_damaged_folders_are_named_and_leave_nothing(folder, kind, tmp_path, capsys) -> None:
    named = damage(folder, kind)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert named in refused(capsys, "from-hf", folder, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_damaged_checkpoints_are_named_and_leave_nothing(in_memory, tmp_path, capsys) -> None:
    write_run(in_memory(), tmp_path / "run", Companions({}), "here")
    for file in (tmp_path / "run" / "checkpoints" / "0" / "state").rglob("d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "checkpoints/0" in refused(capsys, "to-hf", tmp_path / "run", tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "run" / "config.yaml").write_text("model: {d_model: many}")
    assert "model.d_model" in refused(capsys, "to-hf", tmp_path / "run", tmp_path / "hf")
    (tmp_path / "run" / "config.yaml").write_bytes(b"model: \xff\xfe")
    assert "config.yaml" in refused(capsys, "to-hf", tmp_path / "run", tmp_path / "hf")


def test_nothing_is_written_over(folder, tmp_path, capsys) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    assert "is not empty" in refused(capsys, "from-hf", folder, tmp_path / "taken")
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "file").write_text("mine too")
    assert "is in the way" in refused(capsys, "from-hf", folder, tmp_path / "run")
    assert [(tmp_path / name / "file").read_text() for name in ("taken", "run.partial")] == ["mine", "mine too"]
    (tmp_path / "empty").mkdir()
    assert main(["convert", "from-hf", str(folder), str(tmp_path / "empty")]) == 0


def test_more_likeliest_tokens_than_there_are(folder, capsys) -> None:
    shown = refused(capsys, "verify", folder, folder, "--top-k", "1", "51")
    assert "--top-k=51: is more than the 50 ids of the vocabulary" in shown


# Stops for good in the middle of writing, so that the test can kill it there.
STALL = """
import sys, time
import olmo_hydra.interop.{module} as module
read = module.{reader}.read
def stall(self, name):
    if name == "final_norm.weight":
        print("half-way", flush=True)
        time.sleep(600)
    return read(self, name)
module.{reader}.read = stall
from olmo_hydra.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["from-hf", "to-hf"])
def test_killed_half_way(folder, command, tmp_path, capsys) -> None:
    source, target = folder, tmp_path / "target"
    module, reader = "hf_weights", "HFWeights"
    if command == "to-hf":
        source, module, reader = tmp_path / "run", "run_weights", "RunWeights"
        assert main(["convert", "from-hf", str(folder), str(source)]) == 0
        capsys.readouterr()
    program = STALL.format(module=module, reader=reader)
    arguments = [sys.executable, "-c", program, "convert", command, str(source), str(target)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "half-way\n"
            assert "another process is writing it" in refused(capsys, command, source, target)
        finally:
            process.send_signal(signal.SIGKILL)
    partial = tmp_path / "target.partial"
    assert not target.exists() and any(partial.iterdir())
    for place in (target, partial):
        with pytest.raises(Exception, match=r"holds no weights|no config"):
            open_weights(str(place))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert "partial" not in capsys.readouterr().out
    assert main(["convert", command, str(source), str(target)]) == 0  # the same command again
    assert not partial.exists() and open_weights(str(target)).shapes
