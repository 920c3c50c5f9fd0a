"""What the training loop is assembled from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from olmo_hydra.config.root import Config
from olmo_hydra.data.loader import Batch
from olmo_hydra.train.ahead import Update
from olmo_hydra.train.checkpoint import Checkpoints, Meta
from olmo_hydra.train.clock import Clock
from olmo_hydra.train.profile import Profile
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.stop import StopRequest


class Tracker(Protocol):
    """What the loop tells the record."""

    def metrics(self, row: dict[str, Any]) -> None: ...
    def throughput(self, row: dict[str, Any]) -> None: ...
    def event(self, kind: str, **fields: Any) -> None: ...
    def warning(self, text: str, kind: str, **fields: Any) -> None: ...
    def sync(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Parts:
    """What the loop is assembled from.

    `update()` waits for the update, which is compiled elsewhere. `has_heldout` says whether evaluations score text,
    which those of step 0 do for the parameters' sake alone. `evaluate(n, params)` has the devices begin with the
    evaluation at step n, and what it returns waits for them and hands the rows over. `instances(n)` are the numbers of
    all instances of global batch n; `skipped` the events `skipped` of the updates in a row, up to the state that the
    loop begins with, that were.
    """

    config: Config
    mesh: Mesh
    update: Callable[[], Update]
    schedule: Callable[[int], float]
    batches: Iterator[Batch]
    instances: Callable[[int], np.ndarray]
    skipped: Sequence[dict[str, Any]]
    reading: Reading
    checkpoints: Checkpoints
    meta: Meta
    tracker: Tracker
    has_heldout: bool
    evaluate: Callable[[int, nnx.State], Callable[[], None]]
    stop: StopRequest
    clock: Clock
    profile: Profile
