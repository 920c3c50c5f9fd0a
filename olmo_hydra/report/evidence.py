"""What one run directory says, read once."""

from typing import Any

from omegaconf import OmegaConf

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking import history
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]


class Evidence:
    """The parts of a run, each empty or None where the directory does not have it (yet).

    Raises:
      RequestError: The folder holds no frozen config, so it is not a run; or a file is damaged.
    """

    def __init__(self, run_dir: RunDir):
        if not run_dir.config.exists():
            raise RequestError(
                f"is not a run directory: it has no {run_dir.config.name}",
                key="RUN",
                value=run_dir.path,
                instead="olmo-hydra runs lists them",
            )
        self.name = run_dir.path.name
        self.config_text = run_dir.config.read_text()
        self.config: Row = OmegaConf.to_container(OmegaConf.load(run_dir.config), resolve=True)  # type: ignore[assignment]
        self.overrides: list[str] = []
        if run_dir.overrides.exists():
            self.overrides = list(OmegaConf.load(run_dir.overrides))  # type: ignore[arg-type]
        self.starts = history.starts_of(run_dir)
        self.metrics = run_dir.rows("metrics")
        self.throughput = run_dir.rows("throughput")
        self.events = run_dir.rows("events")
        evals = history.of_one_text(run_dir.rows("evals"), self.starts)
        self.heldout = [row for row in evals if row["suite"] == "heldout"]
        self.baselines = {row["suite"]: row for row in evals if row["suite"].startswith("baseline_")}
        self.samples = [sample for row in evals if row["suite"] == "samples" for sample in row["samples"]]
        self.state, _ = run_dir.state()

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
    def skipped(self) -> list[int]:
        """Steps whose update the optimizer skipped."""
        rows = [row["step"] for row in self.metrics if row.get("skipped")]
        events = [event["step"] for event in self.events if event["event"] == "skipped"]
        return sorted({*rows, *events})
