"""A run that blows up, through the real command: it stops with a page on its batches, and goes on to the same end."""

import json
import re
from pathlib import Path

import pytest

from olmo_hydra.cli.main import main
from tests.end_to_end.runs import events, find, train

WRONG = ("optim=adamw", "optim.lr=1e20", "optim.clip_norm=null", "checkpoint.every=5", "tracking.wandb=disabled")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def stopped(root: Path) -> tuple[Path, str]:
    done = train(root, "run.tag=wrong", *WRONG)
    assert done.returncode == 1
    directory = find(root, "wrong")
    assert directory is not None and str(directory / "skipped.html") in done.stderr
    assert "Error executing job" not in done.stderr
    return directory, done.stderr[done.stderr.index("failed:") :]


def test_it_stops_with_one_message(stopped: tuple[Path, str]) -> None:
    directory, message = stopped
    assert "10 updates in a row were skipped" in message and len(message.splitlines()) < 12
    for part in ("update 2, not finite: loss nan", "update 11, ", "run.stop_at=1", "skip_batches=[[2,11]]"):
        assert part in message, part
    last = events(directory)[-1]
    assert (last["event"], last["first"], last["last"], last["checkpoint"]) == ("failed", 2, 11, None)
    assert last["error"].removeprefix("RunFailed: ") in message
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["10.skipped", "5.skipped"]


def words(text: str) -> str:
    """A text without its spaces: one shows lines and columns, the other escapes them."""
    return re.sub(r"\\[nt]|\s", "", text)


def test_the_page_shows_what_was_in_the_batches(stopped: tuple[Path, str], root: Path, capsys) -> None:
    """The same text as `data inspect` shows of those updates."""
    directory, _ = stopped
    told = json.loads((directory / "skipped.json").read_text())
    assert [update["step"] for update in told["updates"]] == list(range(2, 12))
    page = (directory / "skipped.html").read_text()
    for update in told["updates"]:
        assert main(["data", "inspect", str(directory), "--step", str(update["step"]), "--json"]) == 0
        inspected = json.loads(capsys.readouterr().out)["instances"]
        assert update["instances"] == [held["instance"] for held in inspected]
        for held, seen in zip(update["shown"], inspected, strict=True):
            for document, other in zip(held["documents"], seen["documents"], strict=False):
                assert (document["file"], document["document"]) == (other["file"], other["document"])
                assert words(document["text"])[:20] == words(other["text"])[:20]
            assert f"instance {held['instance']}" in page
    report = (directory / "report.html").read_text()
    assert 'href="skipped.html"' in report and "Training stopped at update 11" in report


def test_the_same_command_comes_to_the_same_end(stopped: tuple[Path, str], root: Path) -> None:
    directory, message = stopped
    files = [directory / name for name in ("skipped.json", "metrics.jsonl")]
    before = [path.read_bytes() for path in files]
    done = train(root, "run.tag=wrong", *WRONG)
    assert done.returncode == 1 and done.stderr[done.stderr.index("failed:") :] == message
    assert [path.read_bytes() for path in files] == before


def test_the_report_is_rendered_again_from_the_directory_alone(stopped: tuple[Path, str], tmp_path: Path) -> None:
    directory, _ = stopped
    copy = tmp_path / directory.name
    copy.mkdir()
    for name in ("config.yaml", "overrides.yaml", "provenance.json", "metrics.jsonl", "events.jsonl", "skipped.json"):
        (copy / name).write_bytes((directory / name).read_bytes())
    assert main(["report", str(copy)]) == 0
    assert (copy / "skipped.html").read_bytes() == (directory / "skipped.html").read_bytes()


@pytest.mark.slow
def test_a_run_that_passes_over_batches(root: Path) -> None:
    done = train(root, "run.tag=past", "train.steps=8", "train.skip_batches=[[3,5]]", "tracking.wandb=disabled")
    assert done.returncode == 0, done.stderr[-3000:]
    directory = find(root, "past")
    assert directory is not None
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["loss"] is None] == [3, 4, 5] and len(rows) == 8
    assert "3 to 5" in (directory / "report.html").read_text()
