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


class OnCorrupt(Enum):
    """What a start does about a damaged checkpoint: `refuse`, or continue from the `previous` whole one."""

    refuse = "refuse"
    previous = "previous"


@schema("checkpoint")
@dataclass
class CheckpointConfig:
    """When the state is saved, and what stays. Fields are documented in `conf/checkpoint/default.yaml`."""

    every: int = MISSING
    keep: int | None = None
    ephemeral_every: int | None = None
    fixed_steps: list[int] = MISSING
    on_corrupt: OnCorrupt = MISSING
    accept_changed_data: bool = MISSING

    def due(self, step: int) -> bool:
        """Whether update `step` is followed by a checkpoint."""
        return self.permanent(step) or (self.ephemeral_every is not None and step % self.ephemeral_every == 0)

    def permanent(self, step: int) -> bool:
        """Whether the checkpoint of update `step` stays when there is a newer one."""
        return step % self.every == 0 or step in self.fixed_steps

    def check(self) -> None:
        require(self.every >= 1, "must be at least 1 step", key="checkpoint.every", value=self.every)
        require(
            self.ephemeral_every is None or 1 <= self.ephemeral_every < self.every,
            f"must be at least 1 and less than checkpoint.every={self.every}, or null for none in between",
            key="checkpoint.ephemeral_every",
            value=self.ephemeral_every,
        )
        require(
            all(type(step) is int and step >= 1 for step in self.fixed_steps),
            "must be numbers of updates, from 1",
            key="checkpoint.fixed_steps",
            value=self.fixed_steps,
        )
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
