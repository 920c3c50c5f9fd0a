"""The whole run: the root schema and the run-level nodes that are not groups."""

import re
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from olmo_hydra.config.data import DataConfig
from olmo_hydra.config.errors import require, show
from olmo_hydra.config.hardware import HardwareConfig
from olmo_hydra.config.init import InitConfig
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.config.operations import CheckpointConfig, EvalConfig, TrackingConfig
from olmo_hydra.config.optim import OptimConfig
from olmo_hydra.config.schedule import ScheduleConfig
from olmo_hydra.config.store import NO_SCIENCE

SCIENCE = ("model", "data", "optim", "schedule", "train", "init")
OPERATIONS = ("hardware", "eval", "checkpoint", "tracking", "run")

MOST_PROFILED = 100  # updates: a trace is held in memory


@dataclass
class TrainConfig:
    """Batch, horizon, seed, and what is passed over. Science: the same on any hardware; but for `profile`, a look."""

    global_batch: int = MISSING
    steps: int | None = None
    tokens: int | None = None
    seed: int = MISSING
    z_loss: float = MISSING
    skip_batches: list[list[int]] = MISSING
    profile: list[int] | None = field(default=None, metadata=NO_SCIENCE)

    def derive(self, seq_len: int) -> None:
        """Fills `steps` from `tokens` (rounded up), or `tokens` from `steps`."""
        require(
            self.global_batch >= 1, "must be at least 1 instance", key="train.global_batch", value=self.global_batch
        )
        per_step = self.global_batch * seq_len
        if self.tokens is not None:
            require(self.tokens >= 1, "must be positive", key="train.tokens", value=self.tokens)
            steps = -(-self.tokens // per_step)
            require(
                self.steps is None or self.steps == steps,
                f"contradicts train.tokens={self.tokens}, which is {steps} updates of {per_step} tokens",
                key="train.steps",
                value=self.steps,
                instead="one of train.steps and train.tokens; the other null",
            )
            self.steps = steps
        require(
            self.steps is not None, "the run has no horizon", key="train.steps", value=None, instead="train.steps=300"
        )
        assert self.steps is not None
        require(1 <= self.steps < 2**31, "must lie in [1, 2^31) updates", key="train.steps", value=self.steps)
        self.tokens = self.steps * per_step
        self._check_skipped(self.steps)
        self._check_profile(self.steps)

    def passes_over(self, step: int) -> bool:
        """Whether update `step` reads its batch and changes nothing."""
        return any(first <= step <= last for first, last in self.skip_batches)

    def check(self) -> None:
        require(0 <= self.seed < 2**32, "must lie in [0, 2^32)", key="train.seed", value=self.seed)
        require(self.z_loss >= 0, "must not be negative", key="train.z_loss", value=self.z_loss)

    def _check_profile(self, steps: int) -> None:
        if self.profile is None:
            return
        key, value = "train.profile", self.profile
        require(
            len(value) == 2 and all(type(update) is int for update in value) and value[0] <= value[1],
            "is no first and last update",
            key=key,
            value=value,
            instead=f"{key}=[{min(2, steps)},{min(5, steps)}]",
        )
        require(
            value[0] >= 1 and value[1] <= steps,
            f"is not inside the run, which has updates 1 to {steps}",
            key=key,
            value=value,
            instead=f"{key}={show([min(max(update, 1), steps) for update in value])}",
        )
        require(
            value[1] - value[0] < MOST_PROFILED,
            f"are {value[1] - value[0] + 1} updates, more than the {MOST_PROFILED} that a trace may hold",
            key=key,
            value=value,
            instead=f"{key}={show([value[0], value[0] + MOST_PROFILED - 1])}",
        )

    def _check_skipped(self, steps: int) -> None:
        key, value, behind = "train.skip_batches", self.skip_batches, 0
        for updates in value:
            require(
                all(type(update) is int for update in updates),  # OmegaConf takes true for 1 in a list of lists
                f"{show(updates)} is no list of whole numbers",
                key=key,
                value=value,
            )
            require(
                len(updates) == 2 and updates[0] <= updates[1],
                f"{updates} is no first and last update",
                key=key,
                value=value,
                instead=f"{key}=[[{min(updates)},{max(updates)}]]" if updates else f"{key}=[]",
            )
            first, last = updates
            require(
                first >= 1 and last <= steps,
                f"{updates} is not inside the run, which has updates 1 to {steps}",
                key=key,
                value=value,
            )
            require(
                behind < first,
                f"{updates} begins before the one in front of it ends: they are sorted, and none overlap",
                key=key,
                value=value,
                instead=f"{key}={show(merged(value))}",
            )
            behind = last


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """Ranges of updates, first and last, as sorted ones of the same updates that do not overlap."""
    found: list[list[int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


@dataclass
class RunConfig:
    """Where the run lives and what it is called."""

    root: str = MISSING
    name: str = MISSING
    tag: str | None = None
    stop_at: int | None = None

    def check(self) -> None:
        require(
            bool(self.root.strip()),
            "names no folder",
            key="run.root",
            value=self.root,
            instead="run.root=. for this one",
        )
        for key, text in (("run.name", self.name), ("run.tag", self.tag)):
            require(
                text is None or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text) is not None,
                "must be 1 to 64 letters, digits, dots, dashes or underscores: it names a folder",
                key=key,
                value=text,
            )
        require(
            self.stop_at is None or self.stop_at >= 1, "must be at least 1 step", key="run.stop_at", value=self.stop_at
        )


@dataclass
class Config:
    """Everything that can change a number, and everything that says where and how it is computed."""

    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    optim: OptimConfig = MISSING
    schedule: ScheduleConfig = MISSING
    hardware: HardwareConfig = MISSING
    eval: EvalConfig = MISSING
    checkpoint: CheckpointConfig = MISSING
    tracking: TrackingConfig = MISSING
    train: TrainConfig = field(default_factory=TrainConfig)
    init: InitConfig = field(default_factory=InitConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def last_update(self) -> int:
        """The update after which the command ends: the horizon, or `run.stop_at`."""
        assert self.train.steps is not None
        return min(self.train.steps, self.run.stop_at or self.train.steps)


ConfigStore.instance().store(name="base_config", node=Config, provider="olmo_hydra")
