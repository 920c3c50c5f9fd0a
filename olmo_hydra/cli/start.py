"""What a start of a run writes before it trains, by process 0 alone: the frozen config, where it stands, a tracker."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import yaml

from olmo_hydra.config.errors import RequestError, show
from olmo_hydra.config.identity import flat, plain, run_name, science
from olmo_hydra.config.operations import OnCorrupt
from olmo_hydra.config.root import Config
from olmo_hydra.tracking import provenance
from olmo_hydra.tracking.documents import load_yaml
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.goodput import TimeSheet
from olmo_hydra.tracking.progress import Progress
from olmo_hydra.tracking.record import Kept, Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.tracker import Tracker, open_tracker
from olmo_hydra.train.clock import Clock

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Start:
    """A start: what its process found, once nothing can refuse the request any more.

    Attributes:
      done: Updates that the state has seen.
      data: What provenance says of the data.
      devices: And of the devices.
      evaluates: Whether any text is held out.
      rows: What the checkpoint says of the record; nothing without one.
      init: Where the first parameters come from, if from elsewhere.
      events: Further ones to tell, after that of the start.
    """

    config: Config
    overrides: list[str]
    run_dir: RunDir
    done: int
    data: dict[str, Any]
    devices: dict[str, Any]
    evaluates: bool
    rows: Kept = field(default_factory=dict)
    init: dict[str, Any] | None = None
    events: Sequence[Event] = field(default_factory=list)


def recorded(start: Start, progress: Progress, clock: Clock, stack: ExitStack) -> Tracker:
    """The tracker of a start, with everything written that is known before the first update.

    Raises:
      RequestError: The run directory is not as the checkpoint, or the first start, left it.
    """
    config, run_dir, done = start.config, start.run_dir, start.done
    if done:
        refuse_missing_files(run_dir)
    changed = freeze(config, start.overrides, run_dir)
    record = Record(run_dir)
    record.rewind(done or None, start.rows)
    clock.step = done
    assert config.hardware.chips is not None
    times = TimeSheet(record, run_dir.rows("time"), config.hardware.chips, clock.reading)
    stack.callback(times.close)
    row = provenance.collect(config, start.overrides, done, start.data, start.devices)
    provenance.append_start(run_dir, row)
    tracker = open_tracker(config, run_dir, run_name(config), record, progress, times)
    init = {"init": start.init} if start.init else {}
    tracker.event("resumed" if done else "started", step=done, **changed, **init)
    for kind, fields in start.events:
        tracker.event(kind, step=done, **fields)
    if not start.evaluates:
        progress.note("no text is held out: nothing will be evaluated (data.heldout_mix names text to evaluate)")
    return tracker


def freeze(config: Config, overrides: list[str], run_dir: RunDir) -> dict[str, Any]:
    """Writes config.yaml and overrides.yaml at the first start; later, says which operations differ from them.

    Raises:
      RequestError: The frozen science is not the run's: somebody edited the file.
    """
    now = plain(config)
    frozen = load_yaml(run_dir.config)
    if frozen is None:
        replace(run_dir.overrides, yaml.safe_dump(overrides).encode())
        replace(run_dir.config, yaml.safe_dump(now, sort_keys=False).encode())
        return {}
    then = flat(frozen)
    fixed = flat(science(config))
    for key, value in fixed.items():
        if then.get(key) != value:
            raise RequestError(
                f"the run was frozen with {show(then.get(key))}; its config.yaml was edited",
                key=key,
                value=value,
                where=str(run_dir.config),
                instead="the original file, or run.tag=NAME for a run of its own",
            )
    differ = {
        key: {"was": then.get(key), "is": value}
        for key, value in flat(now).items()
        if key not in fixed and then.get(key) != value
    }
    return {"changed": differ} if differ else {}


def refuse_missing_files(run_dir: RunDir) -> None:
    """Raises RequestError unless all is there that the first start wrote before any checkpoint."""
    for path in (run_dir.config, run_dir.overrides, run_dir.provenance, run_dir.events):
        if not path.is_file() or path.stat().st_size == 0:
            raise RequestError(
                "is missing, or empty, of a run that has a checkpoint",
                where=str(path),
                instead="a copy of it, or run.tag=NAME for a run from the start",
            )


def missing_checkpoint(run_dir: RunDir, done: int, damaged: Sequence[int], on_corrupt: OnCorrupt) -> int | None:
    """The newest checkpoint that the events tell of, if it is gone.

    Args:
      run_dir: Of the run.
      done: Update of the checkpoint that it continues from; 0: from none.
      damaged: Those that are there.
      on_corrupt: Whether it may begin anew where no other is there: its rows would go, too.

    Raises:
      RequestError: It may not.
    """
    told = 0
    for event in run_dir.rows("events"):
        if event["event"] == "started":
            told = 0
        elif event["event"] in ("checkpoint", "resumed"):
            told = event["step"]
        elif event["event"] == "failed" and "first" in event:  # the later ones were set aside
            told = event["checkpoint"] or 0
    if told <= done or told in damaged:
        return None
    if not done and on_corrupt is OnCorrupt.refuse:
        raise RequestError(
            f"checkpoint {told} is gone, and no other is there",
            where=str(run_dir.checkpoints),
            instead="a copy of it; or checkpoint.on_corrupt=previous, which begins the run anew",
        )
    return told
