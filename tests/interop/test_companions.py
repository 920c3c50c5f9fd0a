"""What goes with weights: a tokenizer's files and ids."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import compose
from olmo_hydra.config.identity import plain
from olmo_hydra.interop.companions import TEMPLATES, Companions, companions_of_run
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.write_hf import write_hf
from olmo_hydra.interop.write_run import write_run
from olmo_hydra.tracking.run_dir import RunDir

SPECIAL = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": 4}


@pytest.fixture
def folder(in_memory, tmp_path) -> Path:
    """A folder of Hugging Face weights with a tokenizer."""
    path = tmp_path / "hf"
    (tmp_path / "tokenizer.json").write_text('{"made": "up"}')
    write_hf(in_memory(), path, Companions(SPECIAL, (tmp_path / "tokenizer.json",)))
    return path


def test_tokenizers_follow_what_a_run_started_from(folder, tmp_path) -> None:
    config = plain(compose(["model.vocab_size=100278"])) | {"init": {"from": f"hf:{folder}", "load": "weights"}}
    config["data"]["tokenizer"] = "dolma2"
    names = ("stage1", "stage2")
    for name, source in zip(names, (f"hf:{folder}", "run:stage1@7"), strict=True):
        (tmp_path / name).mkdir()
        config["init"]["from"] = source
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
    found = companions_of_run(RunDir(tmp_path / "stage2"))
    assert found.special == SPECIAL and folder / "tokenizer.json" in found.files
    shutil.rmtree(folder)
    assert companions_of_run(RunDir(tmp_path / "stage2")).special["eos_token_id"] == 100257


def test_a_config_without_data_names_no_tokenizer(in_memory, tmp_path, capsys) -> None:
    write_run(in_memory(), tmp_path / "run", Companions({}), "here")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(yaml.safe_dump({"model": yaml.safe_load(config.read_text())["model"]}))
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    assert "no tokenizer: there is none (--tokenizer DIR)" in capsys.readouterr().out
    assert HFWeights(tmp_path / "hf").content["eos_token_id"] is None


def test_the_tokenizer_of_another_folder(folder, in_memory, tmp_path, capsys) -> None:
    write_run(in_memory(), tmp_path / "runs" / "run", Companions({"eos_token_id": 7}), "here")

    def export(name: str, tokenizer: Path) -> int:
        arguments = ["run", str(tmp_path / name), "--root", str(tmp_path / "runs"), "--tokenizer", str(tokenizer)]
        return main(["convert", "to-hf", *arguments])

    assert export("one", folder) == 0
    assert "no tokenizer" not in capsys.readouterr().out
    assert (tmp_path / "one" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert HFWeights(tmp_path / "one").content["eos_token_id"] == SPECIAL["eos_token_id"]
    alone = tmp_path / "alone"
    alone.mkdir()
    assert export("two", alone) == 2 and "has no tokenizer" in capsys.readouterr().err
    shutil.copy(folder / "tokenizer.json", alone)
    assert export("two", alone) == 0
    assert HFWeights(tmp_path / "two").content["eos_token_id"] == 7, "no config.json: the run's own"
    (alone / "config.json").write_text(json.dumps({"eos_token_id": [3, 50]}))
    assert export("three", alone) == 2
    assert "its eos_token_id is [3,50], and the model has 50 ids" in capsys.readouterr().err


def test_templates_in_their_folder_go_along(folder, tmp_path) -> None:
    (folder / TEMPLATES).mkdir()
    (folder / TEMPLATES / "tool_use.jinja").write_text("{{ tools }}")
    assert main(["convert", "from-hf", str(folder), str(tmp_path / "run")]) == 0
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / TEMPLATES / "tool_use.jinja").read_text() == "{{ tools }}"


def test_ids_are_whole_numbers(folder, tmp_path, capsys) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    for wrong, shown in ((float("nan"), "nan"), ("3", "3"), ({"a": 3}, "{'a': 3}"), ([3, None], "[3,null]")):
        file.write_text(json.dumps({**content, "eos_token_id": wrong}))
        assert main(["convert", "from-hf", str(folder), str(tmp_path / "run")]) == 2
        err = capsys.readouterr().err
        assert f"eos_token_id={shown}: is no whole number" in err and str(file) in err
    file.write_text(json.dumps({**content, "pad_token_id": [3, 4]}))
    assert main(["convert", "from-hf", str(folder), str(tmp_path / "run")]) == 2
    assert "pad_token_id=[3,4]: is no whole number" in capsys.readouterr().err
    file.write_text(json.dumps({**content, "eos_token_id": [3, 4]}))
    assert main(["convert", "from-hf", str(folder), str(tmp_path / "run")]) == 0
    config = tmp_path / "run" / "config.yaml"
    for special, named in (({"pad_token_id": ".nan"}, "weights.special.pad_token_id=.nan"), (None, "weights.special")):
        node = yaml.safe_load(config.read_text())
        node["weights"] = {"from": "here"} if special is None else {"special": special}
        config.write_text(yaml.safe_dump(node))
        assert main(["convert", "to-hf", str(tmp_path / "run"), str(tmp_path / "back")]) == 2
        err = capsys.readouterr().err
        assert f"error: {named}" in err and str(config) in err
