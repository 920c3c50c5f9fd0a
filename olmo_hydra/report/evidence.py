"""What one run directory says, read once."""

from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking import goodput, history
from olmo_hydra.tracking.documents import load_json, load_yaml
from olmo_hydra.tracking.files import MAX_TEXT, read
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]


class Evidence:
    """The parts of a run, each empty or None where the directory does not have it (yet).

    Raises:
      RequestError: The folder holds no frozen config, so it is not a run; or a file is damaged.
    """

    def __init__(self, run_dir: RunDir):
        config = load_yaml(run_dir.config)
        if config is None:
            raise RequestError(
                f"is not a run directory: it has no {run_dir.config.name}",
                key="RUN",
                value=run_dir.path,
                instead="olmo-hydra runs lists them",
            )
        self.name = run_dir.path.name
        if not isinstance(config, dict):
            raise RequestError("is no config", where=str(run_dir.config), instead="a copy of what the run wrote")
        self.config_text = (read(run_dir.config, MAX_TEXT) or b"").decode()
        self.config: Row = config
        self.overrides: list[str] = load_yaml(run_dir.overrides) or []
        self.starts = history.starts_of(run_dir)
        self.metrics = run_dir.rows("metrics")
        self.throughput = run_dir.rows("throughput")
        self.events = run_dir.rows("events")
        self.account = goodput.of_run(run_dir)
        evals = history.of_one_text(run_dir.rows("evals"), self.starts)
        self.heldout = [row for row in evals if row["suite"] == "heldout"]
        self.baselines = {row["suite"]: row for row in evals if row["suite"].startswith("baseline_")}
        self.samples = [sample for row in evals if row["suite"] == "samples" for sample in row["samples"]]
        self.state, _ = run_dir.state()
        self.skipped_batches: Row | None = load_json(run_dir.skipped_batches)

    @property
    def is_weights(self) -> bool:
        """Whether the directory holds nothing but weights from elsewhere."""
        return "weights" in self.config

    @property
    def steps(self) -> int:
        """Updates the run is to make."""
        return self.config["train"]["steps"]

    @property
    def done(self) -> int:
        """Updates made, as far as rows tell."""
        return max([row["step"] for row in (*self.metrics[-1:], *self.heldout[-1:])], default=0)

    @property
    def tokens_per_update(self) -> int:
        """Tokens of a global batch."""
        return self.config["train"]["global_batch"] * self.config["data"]["seq_len"]

    @property
    def finished(self) -> bool:
        """Whether the last update was made."""
        return self.state == "Finished"

    @property
    def stopped(self) -> Row | None:
        """The event by which skipped updates ended the run, if that is where it stands."""
        failed = [event for event in self.events if event["event"] == "failed"]
        return failed[-1] if self.state == "Failed" and "first" in failed[-1] else None

    @property
    def passed_over(self) -> list[list[int]]:
        """First and last of the updates that read their batches and change nothing."""
        return self.config["train"].get("skip_batches", [])

    @property
    def skipped_rows(self) -> list[Row]:
        """The logged steps among them."""
        skipped = set(self.skipped)
        return [row for row in self.metrics if row["step"] in skipped]

    @property
    def skipped(self) -> list[int]:
        """Steps whose update the optimizer skipped."""
        rows = [row["step"] for row in self.metrics if row.get("skipped")]
        events = [event["step"] for event in self.events if event["event"] == "skipped"]
        return sorted({*rows, *events})
