"""What `python train.py` says and does of its data when that is wrong, changed, or not held out; the real command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kills.tiny import ROOT, environment
from olmo_hydra.cli.main import main
from tests.end_to_end.runs import events

LENGTH, INSTANCES = 32, 96
PROSE = '<p class="wide">'  # of a report, which may also hold the code's uncommitted changes
SMALL = (
    *("data=tokens", "data.tokenizer=bytes", "+data.sources={web: {paths: [web.npy]}, code: {paths: [code.npy]}}"),
    *("model.d_model=32", "model.head_dim=16", "model.d_ff=48", "model.window=8", f"data.seq_len={LENGTH}"),
    *("train.global_batch=8", "train.steps=24", "schedule.warmup_steps=2", "checkpoint.every=4", "eval.every=100"),
    *("eval.sample_tokens=4", "eval.prompts=[a]", "tracking.log_every=1", "tracking.wandb=disabled"),
)
TWICE = """
import runpy, sys
from olmo_hydra.data import opened
from tests.train.twice import ShardedTwice
opened.Sampler = ShardedTwice
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in ("web", "code"):
        rng.integers(0, 256, INSTANCES // 2 * LENGTH).astype("<u2").tofile(tmp_path / f"{label}.npy")
    return tmp_path


def train(root: Path, *overrides: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    typed = [*SMALL, f"data.root={root}", f"run.root={root}", *overrides]
    command = [sys.executable, *before, str(ROOT / "train.py"), *typed]
    variables = environment() | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=root)


def hold_out(root: Path, *texts: bytes) -> None:
    """Writes documents, and the mix that holds them out."""
    tokens = [number for text in texts for number in (*text, 256)]
    (root / "unseen").mkdir(exist_ok=True)
    np.array(tokens, "<u2").tofile(root / "unseen" / "bytes.npy")
    (root / "heldout.txt").write_text("prose,unseen/{TOKENIZER}.npy\n")


def run_of(root: Path) -> Path:
    (directory,) = root.glob("nano-*")
    return directory


def last_row(directory: Path) -> dict:
    return json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
def test_a_run_without_held_out_text_says_so_everywhere(root: Path) -> None:
    """And reads every instance once an epoch, of which 24 updates are two."""
    done = train(root)
    assert done.returncode == 0, done.stderr[-3000:]
    directory = run_of(root)
    assert "data: 96 instances of 32 tokens, 0.0% of them padding; 0 tokens (0.0%) of the files are" in done.stderr
    assert done.stderr.count("no text is held out") == 1 and "no held-out text was evaluated" in done.stdout
    assert "No text is held out" in (directory / "report.html").read_text()
    assert [json.loads(line)["suite"] for line in (directory / "evals.jsonl").read_text().splitlines()] == ["samples"]
    row = last_row(directory)
    assert (row["data/epoch"], row["data/seen_fraction"], row["data/repeated_fraction"]) == (2, 1, 0)
    assert row["data/tokens/web"] == row["data/tokens/code"] == 2 * INSTANCES // 2 * LENGTH
    assert "No epoch read an instance twice." in (directory / "report.html").read_text()


@pytest.mark.slow
def test_changed_data_is_refused_recorded_where_accepted_and_leaves_the_run_resumable(root: Path, capsys) -> None:
    """Here it cannot be read, which shows in a thread of the loader."""
    whole = (root / "web.npy").read_bytes()
    assert train(root, "run.stop_at=6").returncode == 0
    spoilt = np.fromfile(root / "web.npy", "<u2")
    spoilt[::LENGTH] = 65535  # in every instance
    spoilt.tofile(root / "web.npy")
    done = train(root)
    assert done.returncode == 2 and "web.npy has other content" in done.stderr, done.stderr[-3000:]

    done = train(root, "checkpoint.accept_changed_data=true")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "token 65535 is past the 257 ids" in done.stderr and "web.npy, at token" in done.stderr
    directory = run_of(root)
    (told,) = [event for event in events(directory) if event["event"] == "data_changed"]
    assert told["step"] == 6 and told["differences"] == ["web.npy has other content"]
    assert events(directory)[-1]["event"] == "failed"
    assert f"{PROSE}From update 7 on it read other data" in (directory / "report.html").read_text()
    assert main(["data", "inspect", str(directory), "--step", "3"]) == 2
    because = "updates 1 to 6 read other data than is here:\n  after update 6: web.npy has other content\n"
    assert because in capsys.readouterr().err

    (root / "web.npy").write_bytes(whole)
    done = train(root)
    assert done.returncode == 0 and last_row(directory)["step"] == 24, done.stderr[-3000:]
    assert f"{PROSE}From update" not in (directory / "report.html").read_text(), "no update of it is left"
    for step in ("3", "7"):
        assert main(["data", "inspect", str(directory), "--step", step]) == 0


@pytest.mark.slow
def test_changed_held_out_text_is_refused_and_recorded_where_accepted(root: Path) -> None:
    heldout = f"data.heldout_mix={root}/heldout.txt", "eval.every=4"
    hold_out(root, b"Text that is never trained on.", b"More of it.")
    assert train(root, *heldout, "run.stop_at=4").returncode == 0
    directory = run_of(root)
    hold_out(root, b"Text that was never trained on", b"More of it.")
    done = train(root, *heldout)
    assert done.returncode == 2 and "the held-out text of prose is another" in done.stderr, done.stderr[-3000:]
    assert "checkpoint.accept_changed_data=true" in done.stderr

    done = train(root, *heldout, "run.stop_at=12", "checkpoint.accept_changed_data=true")
    assert done.returncode == 0 and "baseline" not in done.stdout and "step 12" in done.stdout, done.stderr[-3000:]
    (told,) = [event for event in events(directory) if event["event"] == "data_changed"]
    assert (told["step"], told["differences"]) == (4, [])
    page = (directory / "report.html").read_text()
    assert f"{PROSE}From update 5 on other text is held out (the held-out text of prose is another)." in page
    hashes = [start["data"]["heldout"] for start in json.loads((directory / "provenance.json").read_text())["starts"]]
    assert len(set(hashes)) == 2 and hashes[1] in page
    assert train(root, *heldout).returncode == 0, "what was accepted is in the next checkpoint"


def test_a_wrong_token_is_named_where_text_is_held_out(root: Path) -> None:
    """The baselines read training text before the first batch does."""
    hold_out(root, b"Text that is never trained on.")
    tokens = np.fromfile(root / "code.npy", "<u2")
    tokens[5] = 60000
    tokens.tofile(root / "code.npy")
    done = train(root, f"data.heldout_mix={root}/heldout.txt")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "token 60000 is past the 257 ids" in done.stderr and "code.npy, at token 5" in done.stderr


@pytest.mark.slow
def test_a_sampler_that_shards_twice_is_told_at_once_and_distrusted_in_the_report(root: Path) -> None:
    done = train(root, before=("-c", TWICE))
    assert done.returncode == 0, done.stderr[-3000:]
    directory = run_of(root)
    told = [event for event in events(directory) if event["event"] == "data_repeated"]
    assert told[0]["epoch"] == 1 and told[0]["repeated"] >= 1 and len(told[0]["examples"]) >= 1
    assert f"warning: update {told[0]['step']} read {told[0]['repeated']} instances" in done.stderr
    row = last_row(directory)
    assert row["step"] == 24, "it goes on"
    assert 0.1 < row["data/repeated_fraction"] < 0.5 and 0.5 < row["data/seen_fraction"] < 0.9
    assert "Training loss is not to be trusted." in (directory / "report.html").read_text()
