"""A damaged checkpoint, through the real command: refused with what to write, and then passed over on demand."""

from pathlib import Path

import pytest

from tests.end_to_end.runs import events, find, train

RUN = ("run.tag=flipped", "tracking.wandb=disabled", "checkpoint.every=5", "eval.every=100")


@pytest.mark.slow
def test_a_flipped_byte_is_refused_and_the_checkpoint_before_serves(tmp_path: Path) -> None:
    paused = train(tmp_path, *RUN, "run.stop_at=10")
    directory = find(tmp_path, "flipped")
    assert paused.returncode == 0 and directory is not None, paused.stderr[-3000:]
    rows = (directory / "metrics.jsonl").read_bytes()
    file = max((directory / "checkpoints" / "10" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = {path: path.read_bytes() for path in directory.glob("*.jsonl")}

    refused = train(tmp_path, *RUN, "run.stop_at=10")
    name = file.relative_to(directory / "checkpoints" / "10").as_posix()
    assert refused.returncode == 2 and f"checkpoint 10 is damaged: {name} has other content" in refused.stderr
    assert "checkpoint.on_corrupt=previous, which continues from update 5" in refused.stderr
    assert {path: path.read_bytes() for path in directory.glob("*.jsonl")} == before

    done = train(tmp_path, *RUN, "run.stop_at=10", "checkpoint.on_corrupt=previous")
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = [event for event in events(directory) if event["event"] == "checkpoint_damaged"]
    assert (told["step"], told["file"], told["instead"]) == (10, name, 5) and "sha256" in told["why"]
    assert (directory / "metrics.jsonl").read_bytes() == rows
    assert {path.name for path in (directory / "checkpoints").iterdir()} == {"5", "10", "10.damaged"}
