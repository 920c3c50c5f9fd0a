"""What a start refuses before it writes anything."""

import pytest

from olmo_hydra.cli.start import missing_checkpoint, refuse_missing_files
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import OnCorrupt
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir

Told = list[tuple[str, dict]]
STOPPED = {"error": "RunFailed: 3 in a row", "first": 3, "last": 5, "why": "not finite: loss nan"}


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        ([], None),
        ([("started", {"step": 0})], None),
        ([("started", {"step": 0}), ("checkpoint", {"step": 5}), ("checkpoint", {"step": 10})], 10),
        ([("started", {"step": 0}), ("checkpoint", {"step": 5}), ("resumed", {"step": 5})], 5),
        ([("checkpoint", {"step": 5}), ("started", {"step": 0})], None),  # begun anew
        ([("checkpoint", {"step": 5}), ("failed", {"error": "out of memory"})], 5),
        ([("checkpoint", {"step": 5}), ("failed", {**STOPPED, "checkpoint": None})], None),  # that was set aside
        ([("checkpoint", {"step": 2}), ("checkpoint", {"step": 5}), ("failed", {**STOPPED, "checkpoint": 2})], 2),
    ],
)
def test_a_run_that_had_checkpoints_does_not_begin_anew(tmp_path, told: Told, lost: int | None) -> None:
    run_dir = RunDir(tmp_path)
    for kind, fields in told:
        Record(run_dir).event(kind, **fields)
    if lost is None:
        assert missing_checkpoint(run_dir, 0, [], OnCorrupt.refuse) is None
    else:
        with pytest.raises(RequestError, match=f"checkpoint {lost} is gone") as refused:
            missing_checkpoint(run_dir, 0, [], OnCorrupt.refuse)
        assert "checkpoint.on_corrupt=previous" in str(refused.value)
        assert missing_checkpoint(run_dir, 0, [], OnCorrupt.previous) == lost
        assert missing_checkpoint(run_dir, lost - 1, [], OnCorrupt.refuse) == lost  # an older one is there
        assert missing_checkpoint(run_dir, lost - 1, [lost], OnCorrupt.previous) is None
        assert missing_checkpoint(run_dir, lost, [], OnCorrupt.refuse) is None


@pytest.mark.parametrize("name", ["config.yaml", "overrides.yaml", "provenance.json", "events.jsonl"])
@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_what_the_first_start_wrote_is_missed(tmp_path, name: str, spoil) -> None:
    run_dir = RunDir(tmp_path)
    for path in (run_dir.config, run_dir.overrides, run_dir.provenance, run_dir.events):
        path.write_text("something")
    refuse_missing_files(run_dir)
    spoil(tmp_path / name)
    with pytest.raises(RequestError, match="missing, or empty") as refused:
        refuse_missing_files(run_dir)
    assert str(tmp_path / name) in str(refused.value)
