"""`olmo-hydra data audit` and `data inspect RUN`, in-process, on text of the standard library."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest
import yaml

from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import compose
from olmo_hydra.config.identity import digest, plain
from olmo_hydra.data import opened
from olmo_hydra.data.audit.trace import printable
from olmo_hydra.tracking.checkpoints import Kind, write_manifest
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from tests.data.audit.test_audit import ShardsTwice

TEXT = Path(sysconfig.get_path("stdlib")) / "email"


@pytest.fixture(autouse=True)
def hydra_full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def overrides(root: Path, *more: str) -> list[str]:
    text = [f"data.domains.text.path={TEXT}", "data.domains.text.pattern=*.py"]
    return [
        f"run.root={root}",
        "data=text_files",
        *text,
        "train.steps=30",
        "schedule.warmup_steps=3",
        "run.name=mail",
        *more,
    ]


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0):
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def run_dir(root: Path) -> RunDir:
    """A run of 30 updates as training leaves it after 20, saved at 12."""
    config = compose(overrides(root))
    directory = RunDir(root / "mail-00000000")
    directory.path.mkdir()
    directory.config.write_text(yaml.safe_dump(plain(config), sort_keys=False))
    record = Record(directory)
    record.rewind(None)
    for step in range(1, 21):
        record.metrics({"step": step})
    saved = directory.checkpoints / "12"
    saved.mkdir(parents=True)
    write_manifest(saved, 12, Kind.permanent)
    data = opened.open_data(config, root / "cache", print)
    started(directory, (0, digest(data.fingerprint)))
    return directory


def started(directory: RunDir, *steps_and_fingerprints: tuple[int, str]) -> None:
    starts = [
        {"folder": "/somewhere", "step": step, "data": {"fingerprint": fingerprint}}
        for step, fingerprint in steps_and_fingerprints
    ]
    directory.provenance.write_text(json.dumps({"starts": starts}))


def test_audit(capsys, root: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "audit.svg"
    found = answered(capsys, "data", "audit", *overrides(root), "--processes", "4", "--picture", str(drawn))
    size = sum(path.stat().st_size for path in (root / "cache" / "data").glob("*/train/**/*.npy")) // 2
    n = size // 256
    assert found["tokens"] == size and found["instances"] == n and found["dropped_tokens"] == size - n * 256
    assert found["batches_per_epoch"] == n // 16 and found["tail_instances"] == n % 16
    assert found["run_ends"] == {"epoch": 1, "batch": 30} and found["findings"] == [] and found["is_partition"]
    (epoch,) = found["epochs"]
    in_batches = n // 16 * 16
    assert epoch["all"]["once"] == epoch["reads"] == in_batches and epoch["all"]["never"] == n % 16
    assert epoch["labels"]["text"]["run_reads"] == 30 * 16 and epoch["parts"][0]["label"] == "text"
    assert drawn.read_text().startswith("<svg ")


def test_audit_of_several_epochs_and_packed_documents(capsys, root: Path) -> None:
    more = overrides(root, "data.instances=packed", "train.steps=300", "data.seq_len=512")
    found = answered(capsys, "data", "audit", *more, "--epochs", "3")
    per_epoch = found["batches_per_epoch"]
    assert found["run_epochs"] == 300 / per_epoch
    assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2, 3]
    of_run = [min(max(300 - i * per_epoch, 0), per_epoch) * 16 for i in range(3)]
    assert [epoch["all"]["run_reads"] for epoch in found["epochs"]] == of_run


def test_audit_in_words(capsys, root: Path) -> None:
    first, *others = overrides(root)
    assert main(["data", "audit", first, "--processes", "2", *others]) == 0
    out = capsys.readouterr().out
    assert "epoch 1: 2 processes read " in out and "each exactly once" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_audit_of_a_sampler_that_shards_twice(capsys, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "Sampler", ShardsTwice)
    assert main(["data", "audit", *overrides(root), "--processes", "8"]) == 1
    printed = capsys.readouterr()
    assert "\nfailed: the processes do not read every instance once an epoch\nepoch 1: " in printed.err
    assert "8 processes that shard twice leave 1-(1-1/8)^8 = 65.6%" in printed.err
    found = answered(capsys, "data", "audit", *overrides(root), "--processes", "8", status=1)
    assert not found["is_partition"] and len(found["findings"]) == 2
    all_of_them = found["epochs"][0]["all"]
    assert all_of_them["once"] + all_of_them["never"] + all_of_them["repeated"] == found["instances"]


def test_what_an_update_read_and_back(capsys, run_dir: RunDir) -> None:
    batch = answered(capsys, "data", "inspect", str(run_dir.path), "--step", "7")
    config = compose(overrides(run_dir.path.parent))
    data = opened.open_data(config, run_dir.path.parent / "cache", print)
    capsys.readouterr()
    expected = data.batches.batch(6)
    assert [held["instance"] for held in batch["instances"]] == expected.instances_B.tolist()
    assert (batch["state"], batch["epoch"], batch["batch"]) == ("read, saved", 1, 7)
    for held, tokens_T in zip(batch["instances"], expected.tokens_BT, strict=True):
        document = held["documents"][0]
        text = data.tokenizer.decode(tokens_T[: document["tokens"]])[:200]
        assert document["text"] == printable(text)  # escaped: code may hold backslashes of its own
        source = (TEXT / document["document"]).read_text("utf-8")
        assert text.removesuffix("\ufffd") in source

    held = batch["instances"][3]
    name, document = str(run_dir.path), held["documents"][0]
    for asked in (
        ("--instance", str(held["instance"])),
        ("--file", document["file"], "--offset", str(document["offset"])),
        ("--find", document["text"].encode().decode("unicode_escape")),
        ("--document", document["document"]),
    ):
        found = answered(capsys, "data", "inspect", name, *asked)
        reads = [
            (one["instance"], update["step"], update["state"])
            for place in found["places"]
            for one in place["instances"]
            for epoch in one["epochs"]
            for update in epoch["updates"]
        ]
        assert (held["instance"], 7, "read, saved") in reads, asked
        assert (found["done"], found["saved"], found["steps"]) == (20, 12, 30)
        states = {"read, saved": range(1, 13), "read, not saved": range(13, 21), "to come": range(21, 31)}
        assert all(step in states.get(state, range(31, 10**6)) for _, step, state in reads)


def test_inspect_in_words(capsys, run_dir: RunDir) -> None:
    assert main(["data", "inspect", "mail", "--root", str(run_dir.path.parent), "--step", "15"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mail-00000000\nupdate 15 (read, not saved): batch 15 of ") and "(text)" in out
    assert main(["data", "inspect", str(run_dir.path), "--find", "no such words"]) == 0
    assert "not in the training files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("data audit --processes 3", ["--processes=3", "train.global_batch=16", "1, 2, 4, 8, 16"]),
        ("data audit --processes 0", ["--processes=0"]),
        ("data audit --epochs 0", ["--epochs=0"]),
        ("data inspect --step 3", ["--step", "about a run"]),
        ("data inspect {run} {run} --step 3", ["--step", "about one run"]),
        ("data inspect {run}", ["no question", "--step N"]),
        ("data inspect {run} --step 3 --find text", ["--step, --find", "--find TEXT"]),
        ("data inspect {run} --offset 3", ["--offset", "--file FILE"]),
        ("data inspect {run} --step 3 --documents 0", ["--documents=0"]),
        ("data inspect {run} --step 0", ["--step=0", "updates 1 to 30"]),
        ("data inspect {run} --step 31", ["--step=31", "--step 30"]),
        ("data inspect {run} --step 3 --instance 99999", ["--instance=99999", "not in the batch"]),
        ("data inspect {run} --instance 99999", ["--instance=99999", "there are instances 0 to"]),
        ("data inspect {run} --file no.npy --offset 0", ["--file=no.npy", "00000.npy"]),
        ("data inspect {run} --file 00000.npy --offset 99999999", ["--offset=99999999"]),
        ("data inspect {run} --file 00000.npy", ["--offset TOKEN"]),
        ("data inspect /no/such --step 1", ["/no/such", "olmo-hydra runs"]),
    ],
)
def test_wrong_requests(typed: str, expected: list[str], capsys, run_dir: RunDir, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed.format(run=run_dir.path).split()) == 2
    printed = capsys.readouterr()
    assert all(part in printed.err for part in expected) and printed.out == ""


def test_data_that_is_not_what_the_run_read(capsys, run_dir: RunDir, tmp_path: Path) -> None:
    other = RunDir(tmp_path / "mail-00000000")
    other.path.mkdir()
    other.config.write_bytes(run_dir.config.read_bytes())
    started(other, (0, "another"))
    assert main(["data", "inspect", str(other.path), "--step", "1"]) == 2
    assert "its data is not what the run read" in (err := capsys.readouterr().err) and "/somewhere" in err


@pytest.mark.parametrize("here", ["first", "last"])
def test_data_that_was_exchanged_under_the_run(here: str, capsys, run_dir: RunDir, tmp_path: Path) -> None:
    """Of updates that read what is not here nothing is said but that; a start that was made anew does not count."""
    other = RunDir(tmp_path / "mail-00000000")
    shutil.copytree(run_dir.path, other.path)
    (tmp_path / "cache").symlink_to(run_dir.path.parent / "cache")
    same = json.loads(run_dir.provenance.read_text())["starts"][0]["data"]["fingerprint"]
    before, after = (same, "another") if here == "first" else ("another", same)
    started(other, (0, before), (9, "a third"), (8, after))
    record = Record(other)
    for step, line in ((9, "that did not last"), (8, "a.npy has other content")):
        record.event("data_changed", step=step, differences=[line], heldout=[], begun=1, ledger_begins_anew=False)
    of_another = range(9, 31) if here == "first" else range(1, 9)
    span = "9 on" if here == "first" else "1 to 8"

    for step in (1, 8, 9, 30):
        typed = ["data", "inspect", str(other.path), "--step", str(step)]
        if step not in of_another:
            assert answered(capsys, *typed) == answered(capsys, "data", "inspect", str(run_dir.path), *typed[-2:])
            continue
        assert main(typed) == 2
        assert (
            f"updates {span} read other data than is here:\n  after update 8: a.npy has other content\n"
            in (err := capsys.readouterr().err)
            and "that did not last" not in err
        )
    for name in ("--step 8", "--step 9"):
        batch = answered(capsys, "data", "inspect", str(run_dir.path), *name.split())
        asked = ["--instance", str(batch["instances"][0]["instance"])]
        found = answered(capsys, "data", "inspect", str(other.path), *asked)
        (epoch, *_) = found["places"][0]["instances"][0]["epochs"]
        (update,) = epoch["updates"]
        assert (update["state"] == "of other data") == (update["step"] in of_another)
        assert found["other_data"]["because"] == ["after update 8: a.npy has other content"]
    assert main(["data", "inspect", str(other.path), *asked]) == 0
    assert f"updates {span} are of other data than is here" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"starts": [{"step": 0}]}'])
def test_starts_that_cannot_be_read(content: str, capsys, run_dir: RunDir, tmp_path: Path) -> None:
    other = RunDir(tmp_path / "mail-00000000")
    shutil.copytree(run_dir.path, other.path)
    other.provenance.write_text(content)
    assert main(["data", "inspect", str(other.path), "--step", "1"]) == 2
    assert f"where:   {other.provenance}\n" in capsys.readouterr().err


def test_a_config_of_another_version(capsys, run_dir: RunDir, tmp_path: Path) -> None:
    content = yaml.safe_load(run_dir.config.read_text())
    del content["data"]["max_target_seq_len"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    assert main(["data", "inspect", str(tmp_path), "--step", "1"]) == 2
    assert "other keys" in capsys.readouterr().err
