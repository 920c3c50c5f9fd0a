"""Schemas of the small operational groups: `eval`, `checkpoint`, `tracking`. Never part of a run's identity."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config.errors import require
from olmo_hydra.config.store import schema


@schema("eval")
@dataclass
class EvalConfig:
    """Held-out evaluation in the loop. Fields are documented in `conf/eval/default.yaml`."""

    every: int = MISSING
    batch: int = MISSING
    prompts: list[str] = MISSING
    sample_tokens: int = MISSING
    temperature: float = MISSING

    def check(self) -> None:
        require(self.every >= 1, "must be at least 1 step", key="eval.every", value=self.every)
        require(self.batch >= 1, "must be at least 1 instance", key="eval.batch", value=self.batch)
        require(self.sample_tokens >= 0, "must not be negative", key="eval.sample_tokens", value=self.sample_tokens)
        require(self.temperature >= 0, "must not be negative", key="eval.temperature", value=self.temperature)


@schema("checkpoint")
@dataclass
class CheckpointConfig:
    """When the state is saved. Fields are documented in `conf/checkpoint/default.yaml`."""

    every: int = MISSING
    keep: int | None = None
    accept_changed_data: bool = MISSING

    def check(self) -> None:
        require(self.every >= 1, "must be at least 1 step", key="checkpoint.every", value=self.every)
        require(
            self.keep is None or self.keep >= 1,
            "must be at least 1, or null to keep every checkpoint",
            key="checkpoint.keep",
            value=self.keep,
        )


class WandbMode(Enum):
    """`auto` is `online` where an API key is configured and `offline` elsewhere."""

    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


@schema("tracking")
@dataclass
class TrackingConfig:
    """What is recorded. Fields are documented in `conf/tracking/default.yaml`."""

    log_every: int = MISSING
    wandb: WandbMode = MISSING
    project: str = MISSING
    entity: str | None = None
    group: str | None = None
    tags: list[str] = MISSING

    def check(self) -> None:
        require(self.log_every >= 1, "must be at least 1 step", key="tracking.log_every", value=self.log_every)
        require(bool(self.project.strip()), "must not be empty", key="tracking.project", value=self.project)
