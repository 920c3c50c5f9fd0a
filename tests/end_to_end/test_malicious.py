"""A run directory from a stranger, through the real commands: data that is shown or refused, and nothing else."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from olmo_hydra.cli.main import main
from olmo_hydra.tracking import documents, rows
from olmo_hydra.tracking.run_dir import RunDir
from tests.end_to_end.runs import find, train
from tests.report.synthetic import config, evaluation, finished_run

FILES = ("config.yaml", "overrides.yaml", "provenance.json", "metrics.jsonl", "throughput.jsonl", "evals.jsonl",
         "time.jsonl", "events.jsonl", ".lock")  # fmt: skip
SECRET = "a secret of this machine"
ESCAPE = "\x1b]0;owned\x07\x1b[2J[red]\u202e"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("runs") / "nano-0123abcd").path


@pytest.fixture
def hostile(pristine: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(pristine, tmp_path / "runs" / pristine.name)
    run_dir = RunDir(tmp_path / "runs" / pristine.name)
    (run_dir.path / ".lock").write_text("")
    return run_dir


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    return victim


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """What a command says that refuses: one message, in plain characters."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("error: ") == 1 and "Traceback" not in said
    assert all(line.isprintable() for line in said.splitlines()), said
    return said


def listed(capsys: pytest.CaptureFixture, run_dir: RunDir) -> str:
    assert main(["runs", str(run_dir.path.parent), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    return row["state"]


@pytest.mark.parametrize("name", FILES)
def test_a_link_instead_of_a_file_is_not_read(hostile: RunDir, victim: Path, capsys, name: str) -> None:
    path = hostile.path / name
    path.unlink()
    path.symlink_to(victim)
    said = refused(capsys, "report", str(hostile.path))
    assert "is a link" in said and str(path) in said and SECRET not in said
    assert not hostile.report.exists() and victim.read_text() == SECRET
    if name in ("metrics.jsonl", "evals.jsonl", "events.jsonl", ".lock"):
        assert listed(capsys, hostile).startswith("Damaged")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_a_pipe_or_a_folder_instead_of_a_file_is_refused_at_once(
    hostile: RunDir, capsys, name: str, make: Callable[[Path], None], kind: str
) -> None:
    (hostile.path / name).unlink()
    make(hostile.path / name)
    assert f"is {kind}" in refused(capsys, "report", str(hostile.path))


def test_the_report_replaces_a_link_and_not_what_it_names(hostile: RunDir, victim: Path) -> None:
    hostile.report.symlink_to(victim)
    beside = hostile.path / f".report.html.{socket.gethostname()}.{os.getpid()}"  # where it is written first
    beside.symlink_to(victim)
    assert main(["report", str(hostile.path)]) == 0
    assert victim.read_text() == SECRET and not hostile.report.is_symlink() and not beside.is_symlink()


DEEP = "[" * 100_000 + "]" * 100_000
DAMAGE = {
    "a number of 5,000 digits": b'{"step": ' + b"9" * 5000 + b"}",
    "an infinity": b'{"step": 1, "loss": 1e999}',
    "a constant": b'{"step": 1, "loss": NaN}',
    "deep nesting": b'{"step": 1, "loss": ' + DEEP.encode() + b"}",
    "no UTF-8": b'{"step": 1, "loss": "\xff"}',
    "UTF-16": '{"step": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"step": 1}',
    "zeros": b"\0" * 100,
    "a step in words": b'{"step": "1"}',
    "a negative step": b'{"step": -1}',
    "a list for a step": b'{"step": [1]}',
    "a fraction of a step": b'{"step": 1.5}',
    "truth for a step": b'{"step": true}',
    "no step": b'{"loss": 1}',
    "text for a number": b'{"step": 1, "loss": "<b>"}',
    "a list": b"[1]",
}


@pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE.keys())
def test_rows_that_no_run_writes(hostile: RunDir, capsys, line: bytes) -> None:
    hostile.metrics.write_bytes(line + b"\n" + hostile.metrics.read_bytes())
    assert f"{hostile.metrics}:1" in refused(capsys, "report", str(hostile.path))
    assert "metrics.jsonl:1" in listed(capsys, hostile)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("evals", {"step": 1, "suite": 3, "domains": {}}),
        ("evals", {"step": 1, "suite": "heldout", "bits_per_byte": "1", "domains": {}}),
        ("evals", {"step": 1, "suite": "heldout", "bits_per_byte": 1, "domains": {"a": [1]}}),
        ("evals", {"step": 1, "suite": "heldout", "bits_per_byte": 1, "domains": {"a": {"nats": "<b>"}}}),
        ("evals", {"step": 1, "suite": "samples", "samples": [{"prompt": 1}]}),
        ("events", {"event": ["finished"]}),
        ("events", {"event": "skipped", "step": 60}),
        ("events", {"time": "2026-01-05T10:00:00+00:00", "event": "skipped", "step": 60}),
        ("events", {"time": "2026-01-05T10:00:00+00:00", "event": "finished", "step": 60}),
        ("time", {"step": 60}),
        ("time", {"time": "2026-01-05T10:00:00+00:00", "start": 3, "chips": 1, "step": 60}),
        ("events", {"event": "paused", "step": "x"}),
        ("events", {"event": "data_changed", "step": 1, "differences": 5}),
    ],
)
def test_evaluations_and_events_that_no_run_writes(hostile: RunDir, capsys, name: str, row: dict) -> None:
    path = hostile.path / f"{name}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    line = path.read_bytes().count(b"\n")
    assert f"{path}:{line}" in refused(capsys, "report", str(hostile.path))
    assert f"{name}.jsonl:{line}" in listed(capsys, hostile)


def test_rows_have_bounds(hostile: RunDir, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hostile.metrics.read_bytes()
    with hostile.metrics.open("ab") as file:
        file.write(b'{"step": 401, "loss": 1' + b" " * rows.MAX_ROW + b"}\n")
    assert "has more than" in refused(capsys, "report", str(hostile.path))
    with hostile.metrics.open("wb") as file:
        file.truncate(1 << 40)  # takes no space, and would take all memory
    assert "has more than" in refused(capsys, "report", str(hostile.path))
    hostile.metrics.write_bytes(whole)
    monkeypatch.setattr(rows, "MAX_WEIGHT", len(whole))  # as many small objects take more memory than bytes
    assert "comes after" in refused(capsys, "report", str(hostile.path))


CONFIGS = {
    "an object of Python": "model: !!python/object/apply:os.system ['touch owned']",
    "aliases of aliases": "a: &a [x, x]\nb: &b [*a, *a]\nmodel: [*b, *b]",
    "an alias of itself": "model: &a [*a]",
    "deep nesting": "model: " + DEEP,
    "a number of 5,000 digits": "model: " + "9" * 5000,
    "no UTF-8": "model: \udcff",
    "zeros": "model: \0",
    "a list": "- model",
    "a word": "model",
    "the wrong types": "model: 1\ntrain: [2]\ndata: x\noptim: {lr: [1]}",
    "too large": "# " + "x" * documents.MAX_TEXT,
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("command", ["report", "data inspect --step 1", "convert to-hf"])
def test_configs_that_no_run_writes(hostile: RunDir, capsys, tmp_path: Path, text: str, command: str) -> None:
    hostile.config.write_bytes(text.encode(errors="surrogateescape"))
    words = command.split()
    target = [str(tmp_path / "out")] if words[0] == "convert" else []
    refused(capsys, *words[:2], str(hostile.path), *target, *words[2:])
    assert not (tmp_path / "out").exists() and not Path("owned").exists()


def test_a_frozen_config_looks_nothing_up(hostile: RunDir, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    frozen = yaml.safe_load(hostile.config.read_text())
    frozen["model"]["name"] = frozen["run"]["name"] = "${oc.env:TOKEN}"
    hostile.config.write_text(yaml.safe_dump(frozen))
    assert main(["report", str(hostile.path)]) == 0
    page = hostile.report.read_text()
    assert SECRET not in page and "${oc.env:TOKEN}" in page
    capsys.readouterr()
    for command in (["data", "inspect", str(hostile.path), "--step", "1"],
                    ["convert", "to-hf", str(hostile.path), str(tmp_path / "out")]):  # fmt: skip
        assert "is an interpolation" in refused(capsys, *command)


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{}", b'{"starts": 5}', b'{"starts": [5]}', b'{"starts": [{"step": "x", "data": {"fingerprint": 1}}]}',
     b'{"starts": [{"step": 1, "data": 7}]}', b'{"starts": ' + DEEP.encode() + b"}", b"\xff", b"",
     b'{"starts": [{"step": 1, "data": {"fingerprint": "a"}, "folder": 7}]}'],
)  # fmt: skip
def test_starts_that_no_run_writes(hostile: RunDir, capsys, content: bytes) -> None:
    hostile.provenance.write_bytes(content)
    refused(capsys, "report", str(hostile.path))


def test_names_stay_text_on_a_terminal(tmp_path: Path, capsys) -> None:
    run_dir = RunDir(tmp_path / f"runs{ESCAPE}" / f"-rf '\"\n{ESCAPE}")
    config(run_dir)
    row = evaluation(0, "heldout", 8.0)
    row["domains"] = {f"web{ESCAPE}": row["domains"]["stdlib"]}
    run_dir.evals.write_text(json.dumps(row) + "\n")
    run_dir.events.write_text(json.dumps({"event": "started", "time": "2026-01-05T09:00:00+00:00"}) + "\n")
    from olmo_hydra.cli.say import say
    from olmo_hydra.cli.summary import summary

    assert main(["runs", str(run_dir.path.parent)]) == 0 and main(["report", str(run_dir.path)]) == 0
    say(summary(run_dir))
    said = capsys.readouterr()
    assert all(line.isprintable() for line in (said.out + said.err).splitlines()) and "[red]" in said.out
    run_dir.config.unlink()
    assert "\\x1b" in refused(capsys, "report", str(run_dir.path))


def test_weights_of_a_stranger_take_no_file_along(hostile: RunDir, victim: Path, capsys) -> None:
    from olmo_hydra.config.errors import RequestError
    from olmo_hydra.interop.companions import companions_of_run

    frozen = yaml.safe_load(hostile.config.read_text())
    hostile.config.write_text(yaml.safe_dump({"model": frozen["model"], "weights": {"from": "x", "special": {}}}))
    (hostile.path / "tokenizer").mkdir()
    (hostile.path / "tokenizer" / "tokenizer.json").symlink_to(victim)
    with pytest.raises(RequestError, match="is a link"):
        companions_of_run(hostile)
    frozen["init"]["from"], frozen["data"]["tokenizer"] = f"run:{hostile.path}", "dolma2"
    hostile.config.write_text(yaml.safe_dump(frozen))
    with pytest.raises(RequestError, match="began from one another"):
        companions_of_run(hostile)


@pytest.mark.slow
def test_a_run_that_would_be_resumed_is_not_written_through(tmp_path: Path) -> None:
    """Its name follows from the config, so that anybody who writes to the root can have put it there."""
    options = ("run.tag=placed", "tracking.wandb=disabled", "train.steps=8")
    assert train(tmp_path, *options, "run.stop_at=4").returncode == 0
    directory = find(tmp_path, "placed")
    assert directory is not None
    victim = tmp_path / "victim"
    for name in (".lock", "metrics.jsonl", "logs/process_0.log"):
        victim.write_text(SECRET)
        path, kept = directory / name, tmp_path / "kept"
        path.rename(kept)
        path.symlink_to(victim)
        done = train(tmp_path, *options)
        assert done.returncode == 2 and done.stderr.count("error: ") == 1, done.stderr
        assert "is a link" in done.stderr and name in done.stderr and victim.read_text() == SECRET
        kept.replace(path)
    (directory / "checkpoints").rename(tmp_path / "large_disk")  # one's own links of folders are followed
    (directory / "checkpoints").symlink_to(tmp_path / "large_disk")
    os.link(directory / "metrics.jsonl", tmp_path / "backup")  # by hard links, as some backups are
    before = (tmp_path / "backup").read_bytes()
    assert train(tmp_path, *options).returncode == 0
    assert (tmp_path / "backup").read_bytes() == before and (tmp_path / "large_disk" / "8").is_dir()
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 8
