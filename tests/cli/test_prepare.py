"""`olmo-hydra data prepare SOURCE... --out FOLDER`."""

import json
import os
import signal
import subprocess
import sys

import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.data.corpus import Corpus


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for i in range(40):
        (tmp_path / "notes" / f"{i}.md").write_text(f"# Note {i}\n" + "All that is to be said of it.\n" * (i + 1))
    lines = [json.dumps({"id": f"r{i}", "body": f"record {i}, and nothing else"}) for i in range(50)]
    (tmp_path / "records.jsonl").write_text("\n".join([*lines, "{broken", json.dumps({"body": 3})]))
    return tmp_path


def prepare(*arguments):
    return main(["data", "prepare", *arguments])


def test_files_and_records(texts, capsys):
    arguments = ["notes", "rows=records.jsonl", "--text-field", "body", "--tokenizer", "bpe:300", "--out", "corpus"]
    assert prepare(*arguments, "--heldout-fraction", "0.3", "--workers", "1") == 0
    output = capsys.readouterr().out
    assert "rows: 1 left out: " in output and "training text has" in output
    command = output.strip().splitlines()[-1]
    assert command == "python train.py data=prepared data.path=corpus data.tokenizer=bpe:300 model.vocab_size=300"
    assert max(map(len, output.splitlines()[3:7])) <= 80
    corpus = Corpus(texts / "corpus")
    corpus.verify()
    assert sum(corpus.manifest["domains"]["rows"][split]["documents"] for split in ("train", "heldout")) == 50
    again = [*arguments, "--heldout-fraction", "0.3", "--workers", "4", "--json"]
    assert prepare(*again) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fingerprint"] == corpus.fingerprint and found["train"] == command


def test_text_that_is_only_held_out(texts, capsys):
    assert (
        prepare("notes", "--heldout", "records.jsonl", "--text-field", "body", "--tokenizer", "bytes", "--out", "c")
        == 0
    )
    domains = Corpus(texts / "c").manifest["domains"]
    assert {
        name: [domain[split]["documents"] for split in ("train", "heldout")] for name, domain in domains.items()
    } == {
        "notes": [40, 0],
        "records": [0, 50],
    }
    assert Corpus(texts / "c").manifest["overlap"]["domains"]["records"]["documents_shared"] == 0


def test_a_config_into_a_folder(texts, capsys):
    overrides = ["data=text_files", f"data.domains.text.path={texts / 'notes'}", "data.domains.text.pattern='*.md'"]
    assert prepare(*overrides, "--out", "corpus", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert prepare(*overrides, f"run.root={texts / 'runs'}", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["fingerprint"] == found["fingerprint"] and "has changed" not in printed.err
    (texts / "notes" / "0.md").write_text("written since")
    assert prepare(*overrides, f"run.root={texts / 'runs'}", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["fingerprint"] == found["fingerprint"]
    assert "has changed since" in printed.err


def test_every_byte_of_a_folder_is_checked(texts, capsys):
    assert prepare("notes", "--tokenizer", "bpe:290", "--heldout-fraction", "0.3", "--out", "c") == 0
    inspect = ["data", "inspect", "data=prepared", "data.path=c", "--json"]
    capsys.readouterr()
    assert main(inspect) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == Corpus(texts / "c").fingerprint
    for path in [*(texts / "c").glob("*/*/*"), texts / "c" / "tokenizer.json"]:
        whole = path.read_bytes()
        path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
        assert main(inspect) == 2, path
        assert "damaged" in capsys.readouterr().err
        path.write_bytes(whole)
    assert main(["data", "inspect", "data=prepared", "data.path=notes"]) == 2
    assert "no prepared corpus" in (errors := capsys.readouterr().err) and "rm " not in errors


def test_names_that_look_like_overrides(texts, capsys):
    (texts / "records.jsonl").rename("data.jsonl")
    (texts / "rows=1.jsonl").write_text("\n".join(json.dumps({"body": f"another {i}"}) for i in range(60)))
    (texts / "data=x").mkdir()
    (texts / "data=x" / "a.txt").write_text("of a folder")
    sources = ["data.jsonl", "rows=1.jsonl", "mine=data=x"]
    arguments = ["--text-field", "body", "--tokenizer", "bytes", "--heldout-fraction", "0", "--out", "c"]
    assert prepare(*sources, *arguments) == 0, capsys.readouterr().err
    domains = Corpus(texts / "c").manifest["domains"]
    assert {name: domain["train"]["documents"] for name, domain in domains.items()} == {
        "data": 50,
        "rows_1": 60,
        "mine": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("notes --out c", ["--tokenizer", "dolma2"]),
        ("notes --tokenizer gpt2 --out c", ["--tokenizer=gpt2", "bpe:SIZE"]),
        ("notes --tokenizer no/tokenizer.json --out c", ["--tokenizer=no/tokenizer.json"]),
        ("--tokenizer bytes --out c", ["SOURCE"]),
        ("absent.txt --tokenizer bytes --out c", ["absent.path=absent.txt", "where:   the command line"]),
        ("data.absent --tokenizer bytes --out c", ["data.path=data.absent"]),
        ("data=text_files data.domains.text.path=absent --out c", ["data.domains.text.path=absent", "command line"]),
        ("data=python_text notes --out c", ["SOURCE=[notes]", "sources alone"]),
        ("data=python_text ~data.domains.no-such --out c", ["no-such"]),
        ("notes other/notes --tokenizer bytes --out c", ["notes=other/notes", "other_name=other/notes"]),
        ("notes --tokenizer bytes --out notes", ["--out=notes", "no corpus"]),
        ("notes --tokenizer bytes --out c --workers 0", ["--workers=0"]),
        ("notes --tokenizer bytes --out c --heldout-fraction 1", ["--heldout-fraction=1.0"]),
        ("notes --tokenizer bytes --out c --heldout-fraction 1e-9", ["heldout side", "--heldout-fraction"]),
        ("data=python_text --tokenizer bytes", ["--tokenizer", "--out FOLDER"]),
        ("data=python_text --workers 0", ["--workers=0", "--out FOLDER"]),
        ("data=python_text --heldout-fraction 0", ["--heldout-fraction=0.0", "--out FOLDER"]),
        ("data=python_text --text-field body", ["--text-field=body", "--out FOLDER"]),
        ("data=python_text --no-overlap", ["--no-overlap", "--out FOLDER"]),
        ("data=python_text --out c --heldout-fraction 0", ["--heldout-fraction=0.0", "data.heldout_fraction="]),
        ("data=python_text --out c --text-field body", ["--text-field=body", "text_field="]),
        ("data=python_text --out c --heldout notes", ["--heldout=[notes]", "heldout_fraction=1"]),
        ("loop --tokenizer bytes --out c", ["loop.path=", "is no file or folder"]),
        ("notes --tokenizer loop/tokenizer.json --out c", ["--tokenizer=loop/tokenizer.json"]),
        ("notes --heldout h=notes/3.md --tokenizer bytes --out c", ["h=", "1 duplicate", "cannot be held out"]),
        ("notes --tokenizer bytes --out \udcff", ["--out='\\udcff'", "UTF-8"]),
        ("data=tokens +data.sources={a:{paths:[x]}} --out c", ["data=tokens"]),
    ],
)
def test_wrong_requests(texts, capsys, arguments, says):
    (texts / "loop").symlink_to("loop")
    assert prepare(*arguments.split()) == 2
    errors = capsys.readouterr().err
    assert all(words in errors for words in says), errors
    assert not (texts / "c").exists() and "Traceback" not in errors


def test_ctrl_c(texts):
    with (texts / "long.txt").open("w") as file:
        file.writelines(f"line {i} of a text that takes a while\n" for i in range(1_000_000))
    arguments = [sys.executable, "-m", "olmo_hydra", "data", "prepare", "long.txt", "notes", "--tokenizer", "bytes"]
    process = subprocess.Popen(
        [*arguments, "--heldout-fraction", "0", "--out", "c"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "preparing c" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "the same command continues" in errors
