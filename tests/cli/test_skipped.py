"""What is written of the batches of skipped updates."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from olmo_hydra.cli import skipped
from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir


def told(*steps: int, loss: float = 1.0) -> list[dict[str, Any]]:
    return [{"time": "then", "event": "skipped", "step": step, "loss": loss} for step in steps]


def test_what_a_resumed_run_is_in_the_middle_of() -> None:
    """Of updates that were made twice the second time counts; what is past the checkpoint will be made again."""
    events = [*told(3, 8, 9, 10, loss=1.0), {"event": "resumed", "step": 8}, *told(9, loss=2.0)]
    assert skipped.in_progress(events, 9, 2) == [{"step": 8, "loss": 1.0}, {"step": 9, "loss": 2.0}]
    assert skipped.in_progress(events, 9, 0) == []


def test_equally_many_instances_of_each_batch_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    B, T = 40, 8
    batch = SimpleNamespace(
        instances_B=np.arange(B, dtype=np.uint32), tokens_BT=np.zeros((B, T), np.int32), epoch=2, row=5,
        by_label_BL=np.full((B, 1), T, np.int32), labels_BT=np.full((B, T), -100),
    )  # fmt: skip
    cut = SimpleNamespace(repetition_filter=True)
    data: Any = SimpleNamespace(batches=SimpleNamespace(batch=lambda n: batch, labels=["text"], cut=cut))
    monkeypatch.setattr(skipped, "_documents", lambda data, instance: {"n_documents": 0, "documents": []})
    monkeypatch.setattr(skipped, "SHOWN", 60)
    for steps, shown in (((1, 2), 30), (tuple(range(1, 21)), skipped.LEAST_SHOWN)):
        found = skipped.described(told(*steps), data, 1, steps[-1], None)
        assert [len(update["shown"]) for update in found["updates"]] == [shown] * len(steps) and found["filtered"]
        assert found["updates"][0]["tokens"] == {"text": B * T} and found["updates"][0]["targets"] == 0
        assert (found["updates"][0]["epoch"], found["updates"][0]["row"]) == (2, 5)


def test_data_that_cannot_be_read_does_not_hide_the_failure(tmp_path: Path) -> None:
    run_dir, notes = RunDir(tmp_path), []
    numbers = {"loss": None, "grad_norm": 1.0, "lr": 0.1}
    for kind, fields in (("started", {}), ("skipped", {**numbers, "why": "not finite: loss nan", "instances": [1]})):
        Record(run_dir).event(kind, step=1, **fields)

    def gone(n: int) -> None:
        raise RequestError("the disk is gone")

    data: Any = SimpleNamespace(batches=SimpleNamespace(batch=gone, cut=SimpleNamespace(repetition_filter=False)))
    with pytest.raises(RunFailed, match="too many"), skipped.explained(run_dir, data, notes.append):
        raise RunFailed("too many", first=1, last=1, checkpoint=None, why="")
    assert len(notes) == 1 and "the disk is gone" in notes[0] and not run_dir.skipped_batches.exists()


def test_other_failures_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailed), skipped.explained(RunDir(tmp_path), None, pytest.fail):  # type: ignore[arg-type]
        raise RunFailed("the loader is out of order")
    assert list(tmp_path.iterdir()) == []
