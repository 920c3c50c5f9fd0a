"""The page on skipped updates: what it says, and what it does with a directory that is not whole or not honest."""

import json

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.report.build import page as report_page
from olmo_hydra.report.build import write_report
from olmo_hydra.report.content import Chart, Facts, Link, Samples, Table
from olmo_hydra.report.evidence import Evidence
from olmo_hydra.report.skipped import page, write_skipped
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from tests.report.synthetic import HOSTILE, config, training

WHY = "not finite: gradient norm inf"


def update(step: int, loss: float | None = 9.5) -> dict:
    """A skipped update of three instances, two of them shown."""
    document = {"file": "train/stdlib/00000.npy", "label": "stdlib", "offset": 4096, "tokens": 12,
                "document": f"<i>{step}.py", "text": HOSTILE}  # fmt: skip
    return {
        "step": step, "loss": loss, "grad_norm": None, "lr": 2e-3, "why": WHY, "epoch": 1, "row": step - 1,
        "instances": [7, 10 * step, 10 * step + 1], "tokens": {"stdlib": 700, "topics": 68}, "targets": 765,
        "shown": [
            {"instance": 7, "repeats": True, "n_documents": 2, "documents": [document]},
            {"instance": 10 * step, "repeats": False, "n_documents": 1, "documents": [document]},
        ],
    }  # fmt: skip


def stopped_run(path) -> RunDir:
    """Stopped at update 42, after skipping 40 to 42."""
    run_dir = RunDir(path)
    config(run_dir)
    record = Record(run_dir)
    record.event("started", step=0)
    training(record, range(1, 43), None)
    record.event(
        "failed", error="RunFailed: 3 in a row\n  pause: run.stop_at=39", first=40, last=42, checkpoint=30, why=WHY
    )
    told = {"first": 40, "last": 42, "checkpoint": 30, "filtered": False,
               "updates": [update(40), update(41, None), update(42)]}  # fmt: skip
    run_dir.skipped_batches.write_text(json.dumps(told))
    return run_dir


@pytest.fixture
def run_dir(tmp_path):
    return stopped_run(tmp_path / "nano-0123abcd")


def shown(run_dir):
    run = Evidence(run_dir)
    return page(run, run.skipped_batches)


def blocks(run_dir, kind):
    return [block for section in shown(run_dir).sections for block in section.blocks if isinstance(block, kind)]


def test_what_the_page_says_first(run_dir):
    found = shown(run_dir)
    assert found.title == "nano-0123abcd: skipped updates 40 to 42" and found.state == "Failed"
    assert found.verdict == (
        f"Training stopped at update 42: every update from 40 on was skipped ({WHY}). "
        "Checkpoint 30 is the newest from before them."
    )
    assert {label: value for label, value, _ in found.key_numbers} == {
        "Skipped": "3", "First": "40", "Last": "42", "Checkpoint": "30",
    }  # fmt: skip


def test_the_numbers_around_them(run_dir):
    loss, grad_norm = blocks(run_dir, Chart)
    assert loss.series[0].x[-3:] == [40, 41, 42] and loss.series[0].y[-3:] == [9.5, None, 9.5]
    assert loss.series[1].x == [40, 42] and "in 1 of the skipped" in loss.note
    assert len(grad_norm.series) == 1 and "in 3 of the skipped" in grad_norm.note
    table = blocks(run_dir, Table)[0]
    assert table.rows[1] == ["41", WHY, "not finite", "not finite", "0.002", "1, 41"]


def test_what_the_batches_have_in_common(run_dir):
    (facts,) = blocks(run_dir, Facts)
    said = dict(facts.items)
    assert said["in several batches"] == "7"
    assert said["instances"].startswith("7 different ones, 6") and said["repeat themselves"].startswith("3 of")
    assert "is off" in said["repeat themselves"] and said["without any target"] == "0 of the batches"
    assert blocks(run_dir, Table)[1].rows[0][:3] == ["stdlib", "2.1k", "91.1%"]


def test_batch_by_batch(run_dir):
    batches = blocks(run_dir, Samples)
    assert [batch.folded for batch in batches] == [False, True, True]
    heading, text = batches[0].samples[0]
    assert heading.splitlines() == [
        "instance 7, repeats itself",
        "<i>40.py",
        "stdlib: train/stdlib/00000.npy, 12 tokens from 4,096 on",
    ]
    assert text == f"\n{HOSTILE}\n… and 1 more documents"
    assert batches[1].note == "1 more instances: olmo-hydra data inspect nano-0123abcd --step 41"


def test_text_is_escaped_and_the_page_needs_nothing_else(run_dir):
    path = write_skipped(run_dir)
    html = path.read_text()
    assert "<b>bold" not in html and "&lt;b&gt;bold" in html and "<i>40.py" not in html
    assert "src=" not in html.partition("<script")[0] and "run.stop_at=39" in html


def test_the_report_links_the_page_and_says_where_training_stopped(run_dir):
    write_report(run_dir)
    assert run_dir.skipped_page.exists() and 'href="skipped.html"' in run_dir.report.read_text()
    found = report_page(Evidence(run_dir))
    assert found.verdict.startswith("Training stopped at update 42: ") and found.sections[0].id == "stopped"


def test_a_run_that_went_on_says_so_and_keeps_the_link(run_dir):
    record = Record(run_dir)
    record.event("resumed", step=30)
    record.event("paused", step=39)
    found = report_page(Evidence(run_dir))
    assert "Training stopped" not in found.verdict
    prose, link = found.sections[0].blocks
    assert "started again since" in prose.text and isinstance(link, Link)
    assert shown(run_dir).verdict == "Updates 40 to 42 stopped a start of this run."


def test_without_them_there_is_no_page_and_nothing_is_read_for_it(run_dir, monkeypatch):
    run_dir.skipped_batches.unlink()
    monkeypatch.setattr("olmo_hydra.report.skipped.Evidence", pytest.fail)
    assert write_skipped(run_dir) is None and not run_dir.skipped_page.exists()
    assert "stopped" not in {section.id for section in report_page(Evidence(run_dir)).sections}


@pytest.mark.parametrize("content", ["[]", "{}", '{"updates": []}', '{"first": 1, "updates": [{"step": "x"}]}', "{"])
def test_a_damaged_file_is_one_message(run_dir, content):
    run_dir.skipped_batches.write_text(content)
    with pytest.raises(RequestError) as refusal:
        write_report(run_dir)
    assert run_dir.path.name in str(refusal.value.where)


def test_a_link_is_not_followed(run_dir, tmp_path):
    (tmp_path / "secret").write_text("{}")
    run_dir.skipped_batches.unlink()
    run_dir.skipped_batches.symlink_to(tmp_path / "secret")
    with pytest.raises(RequestError, match="link"):
        write_report(run_dir)
