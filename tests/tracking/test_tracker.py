"""One row, three places."""

import io
import math

from rich.console import Console

from olmo_hydra.config.operations import TrackingConfig, WandbMode
from olmo_hydra.config.root import Config
from olmo_hydra.tracking.goodput import KEYS, TimeSheet
from olmo_hydra.tracking.progress import Progress
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.tracker import open_tracker
from tests.tracking.wandb_file import history

EVALUATION = {"step": 1, "suite": "heldout", "bits_per_byte": 2.5, "domains": {"topics": {"bits_per_byte": 2.5}}}


def test_record_wandb_and_progress_get_the_same_row(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.config.write_text("{}\n")
    console = Console(file=io.StringIO(), width=120)
    progress = Progress(console)
    progress.start(2, 0)
    cfg = Config(tracking=TrackingConfig(log_every=1, wandb=WandbMode.offline, project="p", tags=[]))
    record = Record(run_dir)
    times = TimeSheet(record, [], 1, lambda: {"step": 1, **dict.fromkeys(KEYS, 0.0), "updates": 3.0, "data": 1.0})
    tracker = open_tracker(cfg, run_dir, "0123abcd", record, progress, times)
    tracker.event("started")
    tracker.metrics({"step": 1, "loss": math.nan, "lr": 0.004, "data/epoch": 1})
    tracker.throughput({"step": 1, "seconds": 1.0, "tokens_per_second": 4096.0, "mfu": None})
    tracker.evaluation(EVALUATION)
    tracker.warning("read twice", "data_repeated", step=1, epoch=1, repeated=2)
    tracker.sync()
    tracker.finish(0)
    times.close()

    assert run_dir.rows("metrics") == [{"step": 1, "loss": None, "lr": 0.004, "data/epoch": 1}]
    assert run_dir.rows("evals") == [EVALUATION]
    assert [event["event"] for event in run_dir.rows("events")] == ["wandb", "started", "data_repeated"]
    (row,) = history(next(run_dir.wandb.glob("offline-run-*/*.wandb")))
    assert row == {
        **{"train/step": 1, "train/lr": 0.004, "data/epoch": 1},
        **{"perf/seconds": 1.0, "perf/tokens_per_second": 4096.0, "perf/goodput": 0.75},
        **{"eval/bits_per_byte": 2.5, "eval/topics/bits_per_byte": 2.5},
    }
    assert all(text in console.file.getvalue() for text in ("loss nan", "bpb 2.500", "warning: read twice\n"))


def test_trouble_with_wandb_is_a_line_and_an_event(tmp_path):
    run_dir = RunDir(tmp_path)  # no config.yaml to show
    console = Console(file=io.StringIO(), width=120)
    cfg = Config(tracking=TrackingConfig(log_every=1, wandb=WandbMode.offline, project="p", tags=[]))
    record = Record(run_dir)
    times = TimeSheet(record, [], 1, lambda: {"step": 0, **dict.fromkeys(KEYS, 0.0)})
    tracker = open_tracker(cfg, run_dir, "0123abcd", record, Progress(console), times)
    tracker.finish(1)
    times.close()
    (event,) = run_dir.rows("events")
    assert event["event"] == "wandb_unavailable" and "config.yaml" in event["why"]
    assert console.file.getvalue().startswith("warning: W&B: init failed: ")
