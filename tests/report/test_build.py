"""The content of a page: what it claims, and what it does with runs that are not whole."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from olmo_hydra.cli.summary import summary
from olmo_hydra.config.errors import RequestError
from olmo_hydra.report.build import page, write_report
from olmo_hydra.report.content import Chart, Code, Facts, Prose, Table
from olmo_hydra.report.evidence import Evidence
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from tests.report.synthetic import (
    HOSTILE,
    OVERRIDES,
    SKIPPED,
    config,
    evaluation,
    finished_run,
    ledger,
    start,
    training,
)

NAN = float("nan")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "nano-0123abcd")


@pytest.fixture
def bare(tmp_path):
    run_dir = RunDir(tmp_path / "nano-0123abcd")
    config(run_dir)
    return run_dir


def content(run_dir):
    return page(Evidence(run_dir))


def blocks(run_dir, section, kind):
    (found,) = [one for one in content(run_dir).sections if one.id == section]
    return [block for block in found.blocks if isinstance(block, kind)]


def test_verdict_of_a_finished_run(whole):
    shown = content(whole)
    assert (shown.title, shown.state) == ("nano-0123abcd", "Finished")
    assert shown.verdict == (
        "After 400 updates (1.64M tokens), held-out bits per byte fell from 8.600 to 2.042."
        " On the same text that is better than the trigram (3.117) and the unigram (4.945) models."
    )
    assert {label: value for label, value, _ in shown.key_numbers}["Duration"] == "14 min 0 s"


def test_the_final_table_has_every_domain_and_the_mean(whole):
    (table,) = blocks(whole, "learning", Table)
    assert table.columns == ["domain", "step 400", "std. error", "trigram", "unigram", "step 0", "documents", "text"]
    assert table.rows[1] == ["docstrings", "2.090", "± 0.023", "3.190", "5.060", "8.800", "41", "65.5 kB"]
    assert table.rows[-1] == ["mean over domains", "2.042", "", "3.117", "4.945", "8.600", "166", "262 kB"]


def test_where_the_first_parameters_come_from(bare):
    differs = "yarn_factor is null and 8.0"
    init = {"from": "runs/before-01234567@40", "load": "weights_and_moments", "differs": [differs]}
    Record(bare).event("started", step=0, init=init)
    (facts,) = blocks(bare, "provenance", Facts)
    assert facts.items == [
        ("from", "runs/before-01234567@40"),
        ("taken over", "weights_and_moments"),
        ("there and here", differs),
    ]


def test_curves_are_the_rows(whole):
    charts = {chart.id: chart for chart in content(whole).charts()}
    heldout = charts["heldout"].series
    assert [len(series.x) for series in heldout] == [5, 5, 5, 5, 5, 2, 2]
    assert heldout[0].y == [row["bits_per_byte"] for row in whole.rows("evals") if row["suite"] == "heldout"]
    loss = charts["loss"].series
    assert loss[0].y == [row["loss"] for row in whole.rows("metrics")]
    assert loss[2].x == list(SKIPPED)
    assert charts["grad_norm"].series[0].y[199] is None
    assert "mfu" not in charts


def test_what_ran_counts_the_parameters(whole):
    model, training_facts = blocks(whole, "config", Facts)
    assert dict(model.items)["parameters"] == "0.922M (921,728)"
    assert dict(training_facts.items)["peak learning rate"] == "0.004"
    assert dict(training_facts.items)["global batch"] == "16 x 256 = 4,096 tokens"


def test_the_command_repeats_a_finished_run_under_a_tag(whole):
    (command,) = blocks(whole, "again", Code)
    change_folder, checkout, again = command.text.splitlines()
    assert change_folder == "cd '/home/me/my runs'"
    assert checkout == f"git -C /home/me/olmo checkout 5e53fd6{33 * '0'}  # and the changes below"
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {again}"], capture_output=True, text=True, check=True).stdout
    assert words.splitlines() == ["python", "../olmo/train.py", *OVERRIDES, "run.tag=again"]


@pytest.mark.parametrize(("finished", "tag"), [(False, "run.tag=a b"), (True, "run.tag=again")])
def test_the_command_works_as_printed_from_any_folder_and_does_not_pause_again(bare, tmp_path, finished, tag):
    """In a real checkout, started from another folder than its own."""
    checkout, started_in = tmp_path / "my olmo", tmp_path / "experi'ments"
    started_in.mkdir()
    checkout.mkdir()
    (checkout / "train.py").write_text("import os, sys; print(*sys.argv, os.getcwd(), sep='\\n')")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for arguments in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", checkout, *identity, *arguments], check=True)
    commit = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()
    git = {**start()["git"], "top": str(checkout), "commit": commit}
    first = {**start(), "folder": str(started_in), "script": "../my olmo/train.py", "git": git}
    bare.provenance.write_text(json.dumps({"starts": [first]}))
    bare.overrides.write_text(yaml.safe_dump([*OVERRIDES, "run.stop_at=30", "run.tag=a b", "++run.stop_at=60"]))
    record = Record(bare)
    for event in ("started", "paused", "resumed", "finished" if finished else "paused"):
        record.event(event, step=400)
    (command,) = blocks(bare, "again", Code)
    script = f'python() {{ "{sys.executable}" "$@"; }}\n{command.text}'
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["../my olmo/train.py", *OVERRIDES, tag, str(started_in)]


def test_a_run_that_has_only_its_config_has_a_page(bare):
    shown = content(bare)
    assert (shown.state, shown.verdict) == ("Not started", "No update has been made yet, of 400.")
    assert shown.charts() == []
    assert "<title>nano-0123abcd: not started</title>" in write_report(bare).read_text()


def test_without_held_out_text_nothing_is_claimed(bare):
    record = Record(bare)
    record.event("started")
    training(record, range(1, 51), mfu=0.41)
    shown = content(bare)
    assert shown.state == "Killed"
    assert "nothing can be said" in shown.verdict and "50 of 400" in shown.verdict
    assert {"loss", "mfu"} <= {chart.id for chart in shown.charts()}
    with bare.lock():
        assert content(bare).state == "Running"


@pytest.mark.parametrize(
    ("levels", "trigram", "claim"),
    [
        ((8.0, 3.5), 2.9, "fell from 8.600 to 3.763 at step 100. On the same text that is better than the unigram "
                          "(4.945) model. It has not beaten the trigram (3.117) model."),
        ((8.0, 9.0), 2.9, "did not fall: they went from 8.600 to 9.675 at step 100. It has not beaten the trigram "
                          "(3.117) or the unigram (4.945) model on the same text."),
        ((8.0, NAN), 2.9, "are not finite at step 100: the model gives some text no probability."),
        ((NAN,), 2.9, "are not finite at step 0: the model gives some text no probability."),
        ((NAN, 3.5), NAN, "stand at 3.763 at step 100; the first were not finite. On the same text that is better than "
                          "the unigram (4.945) model."),
        ((8.0,), None, "stand at 8.600 at step 0; there is one evaluation so far."),
    ],
)  # fmt: skip
def test_the_verdict_claims_no_more_than_the_numbers(bare, levels, trigram, claim):
    record = Record(bare)
    record.event("started")
    for i, level in enumerate(levels):
        record.evaluation(evaluation(100 * i, "heldout", level))
    if trigram is not None:
        record.evaluation(evaluation(0, "baseline_trigram", trigram))
        record.evaluation(evaluation(0, "baseline_unigram", 4.6))
    training(record, range(1, 151), None)
    assert content(bare).verdict.endswith(claim)
    write_report(bare)


def test_numbers_that_are_not_finite_are_shown_as_such(bare):
    record = Record(bare)
    record.event("started")
    for row in (evaluation(0, "heldout", 8.0), evaluation(0, "baseline_trigram", NAN), evaluation(9, "heldout", NAN)):
        row["domains"]["topics"]["stderr"] = NAN
        record.evaluation(row)
    record.metrics({"step": 9, **dict.fromkeys(("loss", "z_loss", "lr", "grad_norm", "param_norm"), NAN)})
    record.throughput({"step": 9, "seconds": 0.0, "tokens_per_second": float("inf"), "mfu": NAN})
    shown = content(bare)
    (table,) = blocks(bare, "learning", Table)
    assert table.rows[3][:5] == ["topics", "nan", "± nan", "nan", "7.600"]
    assert table.rows[4][:5] == ["mean over domains", "nan", "", "nan", "8.600"]
    numbers = {label: (value, remark) for label, value, remark in shown.key_numbers}
    assert numbers["Held-out"] == ("nan", "bits per byte; trigram nan")
    assert numbers["Training loss"] == ("nan", "nats per token, last 1 rows")
    assert {chart.id: chart.series[0].y for chart in shown.charts()} == {
        "heldout": [8.6, None], "loss": [None], "lr": [None], "grad_norm": [None], "param_norm": [None],
        "z_loss": [None], "throughput": [None],
    }  # fmt: skip
    assert "± nan" in write_report(bare).read_text()


def test_a_torn_line_is_left_out_and_damage_is_an_error(whole, tmp_path):
    run_dir = finished_run(tmp_path / "torn")
    with run_dir.metrics.open("ab") as file:
        file.write(b'{"step": 401, "lo')
    assert content(run_dir).verdict == content(whole).verdict
    run_dir.metrics.write_bytes(b"damage\n" + run_dir.metrics.read_bytes())
    with pytest.raises(RequestError, match=r"metrics\.jsonl:1"):
        write_report(run_dir)


def test_a_folder_without_a_config_is_no_run(tmp_path):
    with pytest.raises(RequestError, match="is not a run directory"):
        write_report(RunDir(tmp_path))


def test_many_events_of_a_kind_are_folded(bare):
    record = Record(bare)
    record.event("started")
    for step in range(1, 101):
        record.event("checkpoint", step=step)
    (table,) = blocks(bare, "events", Table)
    assert [row[1:3] for row in table.rows] == [
        ["started", ""],
        ["checkpoint", "1"],
        ["… 98 more", ""],
        ["checkpoint", "100"],
    ]


def test_text_from_the_model_and_names_from_the_config_are_escaped(whole):
    html = write_report(whole).read_text()
    assert HOSTILE not in html
    assert "&lt;/pre&gt;&lt;script&gt;document.title = &#39;broken&#39;&lt;/script&gt; &amp; &lt;b&gt;" in html
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html).group(1)
    assert set(json.loads(data)) == {chart.id for chart in content(whole).charts()}


def test_domain_names_cannot_end_the_script(bare):
    row = evaluation(0, "heldout", 8.0)
    row["domains"] = {"</script><b>": row["domains"]["stdlib"]}
    Record(bare).evaluation(row)
    html = write_report(bare).read_text()
    assert "</script><b>" not in html and isinstance(content(bare).charts()[0], Chart)


def test_reports_need_neither_jax_nor_wandb():
    code = (
        "import sys, olmo_hydra.report.build, olmo_hydra.tracking.tracker; print({'jax', 'wandb'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_what_it_read_is_what_the_ledger_counted(whole):
    (prose,), (facts,), (table,) = (blocks(whole, "reading", kind) for kind in (Prose, Facts, Table))
    assert prose.text == "No epoch read an instance twice."
    assert dict(facts.items) == {
        "epoch": "2", "seen in it": "60% of the instances", "read again in it": "0% of what was read",
        "without targets": "4,096 tokens, by the repetition filter",
    }  # fmt: skip
    assert table.rows[0] == ["stdlib", "0.983M", "60.00%"] and table.rows[-1] == ["all", "1.64M", "100.00%"]


def test_the_page_begins_with_data_that_was_read_twice(bare):
    record = Record(bare)
    record.event("started")
    record.evaluation(evaluation(0, "heldout", 8.0))
    record.event("data_repeated", step=7, epoch=1, repeated=3, examples=[4, 5, 6])
    told = "Update 7 read 3 instances that epoch 1 had read before: "
    distrust = "the data is sharded twice, or was resumed wrongly. Training loss is not to be trusted."
    assert content(bare).verdict.startswith(f"{told}{distrust} After 0 of 400 updates")
    training(record, range(1, 11), None)
    for row in ({"step": 11, **ledger(11, 0.123)}, {"step": 260, **ledger(260)}):  # whole again in the next epoch
        record.metrics({"loss": 1.0, "lr": 0.1, "grad_norm": 1.0, "param_norm": 1.0, "z_loss": 0.0, **row})
    share = "12.3% of the instances that epoch 1 read had been read in it before: "
    assert content(bare).verdict.startswith(share + distrust)
    assert blocks(bare, "reading", Prose)[0].text == share + distrust
    assert distrust in write_report(bare).read_text()


def test_many_labels_and_files_instead_of_documents(bare):
    record = Record(bare)
    record.event("started")
    tokens = {f"data/tokens/{i:03}": 1000 - i for i in range(200)}
    record.metrics({"step": 1, **dict.fromkeys(("loss", "z_loss", "lr", "grad_norm", "param_norm"), 1.0), **ledger(1),
                    **tokens})  # fmt: skip
    sides = {"train": {"files": 2, "tokens": 10**9}, "heldout": {"files": 0, "tokens": 0}}
    data = start()["data"] | {"name": "mix", "domains": {f"{i:03}": sides for i in range(200)}}
    bare.provenance.write_text(json.dumps({"starts": [{**start(), "data": data}]}))
    (table,) = blocks(bare, "reading", Table)
    assert len(table.rows) == 32 and table.rows[-2][0] == "174 others"
    (used,) = blocks(bare, "text", Table)
    assert used.columns == ["domain", "train files", "train tokens", "held-out files", "held-out tokens"]
    assert used.rows[-2] == ["170 others", "340", "170B", "0", "0"]
    assert used.rows[-1] == ["all", "400", "200B", "0", "0"]


def started(run_dir, *steps_and_hashes):
    starts = [{**start(step), "data": start()["data"] | hashes} for step, hashes in steps_and_hashes]
    run_dir.provenance.write_text(json.dumps({"starts": starts}))


def changed(record, step, *, differences=(), heldout=(), begun=None, anew=False):
    fields = {"differences": list(differences), "heldout": list(heldout)}
    record.event("data_changed", step=step, **fields, begun=begun, ledger_begins_anew=anew)


def test_data_that_was_exchanged(bare):
    """From the update after the checkpoint on; of a start whose updates were all made anew, nothing is said."""
    record = Record(bare)
    record.event("started", step=0)
    training(record, range(1, 101), None)
    changed(record, 40, differences=["web/1.npy has other content"], begun=1)
    changed(record, 30, differences=["web/2.npy is gone", "9 instances then, 8 now"], begun=1, anew=True)
    started(bare, (0, {}), (40, {"fingerprint": "b"}), (30, {"fingerprint": "c"}))
    assert [prose.text for prose in blocks(bare, "reading", Prose)] == [
        "From update 31 on it read other data: web/2.npy is gone; 9 instances then, 8 now.",
        "Whether epoch 1 read anything twice cannot be said: its data was exchanged before update 31, from where the "
        "ledger counts anew.",
    ]
    training(record, range(251, 261), None)
    assert blocks(bare, "reading", Prose)[-1].text.endswith(" anew. No other epoch read an instance twice.")
    started(bare, (0, {}), (40, {"fingerprint": "b"}), (30, {}))
    assert [prose.text for prose in blocks(bare, "reading", Prose)] == ["No epoch read an instance twice."]


def test_evaluations_of_another_text_are_not_compared(bare):
    record = Record(bare)
    record.event("started", step=0)
    record.evaluation(evaluation(0, "baseline_trigram", 2.9))
    for step, level in ((0, 8.0), (100, 7.0), (200, 1.0), (300, 0.5)):
        record.evaluation(evaluation(step, "heldout", level))
    changed(record, 100, heldout=["the held-out text of web is another"])
    training(record, range(1, 301), None)
    started(bare, (0, {}), (100, {"heldout": "2d" * 32}))
    assert content(bare).verdict == (
        "From update 101 on other text is held out (the held-out text of web is another). Evaluations before that do "
        "not compare with those after it and are not shown; evals.jsonl has them. After 300 of 400 updates (1.23M "
        "tokens), held-out bits per byte fell from 1.075 to 0.537."
    )
    (table,) = blocks(bare, "learning", Table)
    assert table.columns[:4] == ["domain", "step 300", "std. error", "step 200"]
    assert "trigram" not in summary(bare) and "step 200" in summary(bare)
    assert blocks(bare, "text", Table)[0].note.endswith("of the held-out text: 2d2d2d2d2d2d2d2d.")
    assert blocks(bare, "reading", Prose)[-1].text == "No epoch read an instance twice."


def test_tokens_that_are_no_bytes_have_a_loss_of_their_own(bare):
    frozen = yaml.safe_load(bare.config.read_text())
    frozen["data"] |= {"tokenizer": "dolma2", "heldout_mix": None}
    bare.config.write_text(yaml.safe_dump(frozen))
    record = Record(bare)
    record.event("started")
    training(record, range(1, 4), None)
    assert content(bare).verdict == (
        "No text is held out (data.heldout_mix=null): after 3 of 400 updates there is no evidence of what was learned."
    )
    record.evaluation(evaluation(0, "heldout", 2.0))
    (table,) = blocks(bare, "learning", Table)
    assert table.columns[:4] == ["domain", "step 0", "std. error", "nats per token"]
    assert table.rows[0][:4] == ["stdlib", "2.000", "± 0.021", "5.545"]  # four bytes a token
