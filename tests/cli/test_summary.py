"""What commands say of a run directory, with numbers that are there, are not, and are not finite."""

from olmo_hydra.cli.summary import summary
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir

NAN = float("nan")


def evaluation(step, suite, bits_per_byte, stderr=0.02):
    domain = {"documents": 3, "bytes": 10, "nats": 20.0, "bits_per_byte": bits_per_byte, "stderr": stderr}
    return {"step": step, "suite": suite, "bits_per_byte": bits_per_byte, "domains": {"topics": domain}}


def make(root, name, evaluations, *events):
    run_dir = RunDir(root / name)
    run_dir.path.mkdir()
    run_dir.config.write_text("{}\n")
    record = Record(run_dir)
    for row in evaluations:
        record.evaluation(row)
    for event in events:
        record.event(event, step=9)
    return run_dir


def test_the_summary_shows_first_and_last_beside_the_baselines(tmp_path):
    evaluations = [evaluation(0, "heldout", 8.0), evaluation(0, "baseline_unigram", 4.6),
                   evaluation(0, "baseline_trigram", 2.9), evaluation(9, "heldout", 2.04)]  # fmt: skip
    run_dir = make(tmp_path, "a", evaluations)
    heading, topics, mean, empty, where = summary(run_dir).splitlines()
    assert heading.split() == ["held-out", "bits/byte", "trigram", "unigram", "step", "0", "step", "9", "stderr"]
    assert topics.split() == ["topics", "2.900", "4.600", "8.000", "2.040", "0.020"]
    assert mean.split() == ["mean", "of", "domains", "2.900", "4.600", "8.000", "2.040"]
    assert (empty, where) == ("", f"run directory  {run_dir.path}")


def test_one_document_has_no_standard_error(tmp_path):
    alone = evaluation(9, "heldout", 2.0, None)
    alone["domains"]["topics"]["documents"] = 1
    _, topics, *_ = summary(make(tmp_path, "a", [evaluation(0, "heldout", 8.0), alone])).splitlines()
    assert topics.split() == ["topics", "8.000", "2.000"]


def test_the_summary_says_nan_where_a_number_is_not_finite(tmp_path):
    run_dir = make(tmp_path, "a", [evaluation(0, "heldout", 8.0), evaluation(9, "heldout", NAN, NAN)])
    _, topics, mean, *_ = summary(run_dir).splitlines()
    assert topics.split() == ["topics", "8.000", "nan", "nan"]
    assert mean.split() == ["mean", "of", "domains", "8.000", "nan"]
