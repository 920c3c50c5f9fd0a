"""What W&B has to hold of a run: one row a step, and no step that was cut."""

import json

import pytest

from olmo_hydra.tracking.wandb_rows import history
from tests.tracking.wandb_machine import DOMAIN, EVALUATION, NAME, expected, make, metrics, recorded, throughput


@pytest.fixture
def run_dir(tmp_path):
    run_dir = make(tmp_path / NAME)
    start = {"step": 0, "data": {"fingerprint": "x", "heldout": "y"}, "operations": {"eval": {"every": 2}}}
    run_dir.provenance.write_text(json.dumps({"starts": [start]}))
    return run_dir


def test_rows_of_all_files_are_one_a_step_in_order(run_dir):
    record = recorded(run_dir, (1, 2, 3))
    for suite in ("heldout", "baseline_unigram", "baseline_trigram"):
        record.evaluation({**EVALUATION, "step": 0, "suite": suite})
    record.evaluation({**EVALUATION, "domains": {"stdlib": {**DOMAIN, "bits_per_byte": None}}})
    record.evaluation({"step": 3, "suite": "samples", "samples": []})
    first, *others = history(run_dir)
    assert first == {"train/step": 0} | {
        f"{suite}/{domain}bits_per_byte": 2.5
        for suite in ("eval", "baseline_unigram", "baseline_trigram")
        for domain in ("", "stdlib/")
    }
    second = others[1].pop("eval/bits_per_byte")  # the domain's is null: not finite
    assert (second, others) == (2.5, expected((1, 2, 3)))


@pytest.mark.parametrize("missing", ["baselines", "timings", "evaluation"])
def test_a_step_that_was_cut_is_left_out(run_dir, missing):
    record = recorded(run_dir, ())
    record.evaluation({**EVALUATION, "step": 0})
    if missing == "baselines":
        assert history(run_dir) == []
        return
    record.metrics(metrics(1))
    record.throughput(throughput(1))
    record.metrics(metrics(2))
    if missing == "evaluation":
        record.throughput(throughput(2))
    assert [row["train/step"] for row in history(run_dir)] == [0, 1]
    record.throughput(throughput(2))
    record.evaluation(EVALUATION)
    assert [row["train/step"] for row in history(run_dir)] == [0, 1, 2]


def test_a_run_without_heldout_text_misses_no_evaluation(run_dir):
    recorded(run_dir, (1, 2))
    assert history(run_dir) == expected((1, 2))


def test_a_last_step_that_was_passed_over_has_no_timings_and_is_whole(run_dir):
    record = recorded(run_dir, (1,))
    record.evaluation({**EVALUATION, "step": 0})
    record.metrics({**metrics(2), "batch_skipped": 1})
    assert [row["train/step"] for row in history(run_dir)] == [0, 1], "its evaluation is due"
    record.evaluation(EVALUATION)
    assert [row["train/step"] for row in history(run_dir)] == [0, 1, 2]
