"""The one place rows go through: record, W&B and progress get the same row."""

from typing import Any

from olmo_hydra.config.root import Config
from olmo_hydra.tracking.goodput import TimeSheet
from olmo_hydra.tracking.progress import Progress
from olmo_hydra.tracking.record import Kept, Record, Row
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_run import WandbRun, start


class Tracker:
    """Hands every row to the record first, then, as recorded, to W&B, and shows it (a loss that is not a number, too).

    Args:
      record: Of the run directory, already rewound to the restored step.
      progress: The progress line of this process; the caller starts and closes it.
      wandb_run: The W&B run of this process start.
      times: The time sheet of this process start; the caller closes it.
    """

    def __init__(self, record: Record, progress: Progress, wandb_run: WandbRun, times: TimeSheet):
        self._record = record
        self._times = times
        self._progress = progress
        self._wandb = wandb_run

    def metrics(self, row: Row) -> None:
        """A logged step: `step`, `loss`, `lr` and whatever else is a function of config and step."""
        self._wandb.metrics(self._record.metrics(row))
        self._progress.step(row["step"], loss=row["loss"], lr=row["lr"])

    def throughput(self, row: Row) -> None:
        """Timings up to a step: `step`, `seconds`, `tokens_per_second`, `mfu`; the run's `goodput` is added."""
        goodput = round(self._times.goodput(), 4)
        self._wandb.throughput(self._record.throughput({**row, "goodput": goodput}))
        self._progress.step(row["step"], tokens_per_second=row["tokens_per_second"])

    def evaluation(self, row: Row) -> None:
        """A (step, suite): held-out text, a baseline on it, or samples."""
        self._wandb.evaluation(self._record.evaluation(row))
        if row["suite"] == "heldout":
            self._progress.evaluated(row["bits_per_byte"])

    def event(self, kind: str, **fields: Any) -> None:
        """Something happened; recorded with the time."""
        self._record.event(kind, **fields)

    def warning(self, text: str, kind: str, **fields: Any) -> None:
        """Something happened that whoever watches has to know: recorded, and a line above the progress."""
        self.event(kind, **fields)
        self._progress.note(f"warning: {text}")

    def sync(self) -> Kept:
        """Forces the rows so far to disk, and where the time went; called before every checkpoint, which keeps what is
        returned: see `Record.kept`.
        """
        self._times.note()
        self._record.sync()
        return self._record.kept()

    def finish(self, exit_code: int) -> None:
        """Ends the W&B run with the outcome of the process (0: done), and forces the rows to disk."""
        self._wandb.finish(exit_code)
        self._record.sync()


def open_tracker(
    cfg: Config, run_dir: RunDir, run_id: str, record: Record, progress: Progress, times: TimeSheet
) -> Tracker:
    """A tracker with a new W&B run. Trouble with W&B is one warning line and an event, here and later."""

    def unavailable(why: str) -> None:
        record.event("wandb_unavailable", why=why)
        progress.note(f"warning: W&B: {why}")

    wandb_run = start(cfg, run_dir, run_id, unavailable)
    if wandb_run.where is not None:
        record.event("wandb", where=wandb_run.where)
    return Tracker(record, progress, wandb_run, times)
