"""A run's record to W&B, later: each step exactly once, whatever the run, or an earlier upload, has sent already.

`wandb sync` of the client's own files cannot do it: they begin anew at each start, overlap, and lose their ends.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import TrackingConfig, WandbMode
from olmo_hydra.tracking import wandb_client
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.history import starts_of
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_calls import abandon
from olmo_hydra.tracking.wandb_rows import STEP, history


class Synced(NamedTuple):
    """What came of a run: it was `sent`, W&B `has` it all already, it was `left` alone, or it `failed`; and why."""

    outcome: str
    why: str
    rows: int = 0  # that were sent
    last: int | None = None  # step that W&B has


def require_key() -> None:
    """Raises RequestError unless a usable API key is configured."""
    try:
        if wandb_client.has_key():
            return
        problem = "no API key is configured"
    except Exception as error:  # of several types, by what is wrong with the key
        problem = f"the API key cannot be used: {wandb_client.one_line(error)}"
    raise RequestError(
        problem, where="Weights & Biases", instead="`wandb login`, or WANDB_API_KEY=KEY in the environment"
    )


def sync(run_dir: RunDir, init_timeout: float = 30.0, finish_timeout: float = 600.0) -> Synced:
    """Sends what W&B lacks of a run that nobody is writing.

    What has been confirmed is kept in the run directory's `wandb/synced.json`, so that W&B is asked only if there is
    more. Whoever is killed in between leaves W&B with the first so many rows: the next upload asks for their end.

    Args:
      run_dir: The run; locked meanwhile.
      init_timeout: Seconds to wait for the server's answer.
      finish_timeout: Seconds to wait for the upload.

    Raises:
      RequestError: The record is damaged.
    """
    writer = run_dir.writer()
    if writer is not None:
        return Synced("left", f"is being written by {writer}")
    tracking = _tracking(run_dir)
    if tracking.wandb is WandbMode.disabled:
        return Synced("left", "tracking.wandb=disabled")
    with run_dir.lock():
        rows = history(run_dir)
        if not rows:
            return Synced("left", "has no rows")
        state, last = run_dir.state()[0], rows[-1][STEP]
        done = {"server": wandb_client.server(), "entity": tracking.entity, "project": tracking.project,
                "step": last, "state": state}  # fmt: skip
        marker = run_dir.wandb / "synced.json"
        if _confirmed(marker) == done:
            return Synced("has", "all of it", 0, last)
        try:
            sent, there = _send(run_dir, tracking, rows, state, init_timeout, finish_timeout)
            if there < last:  # the client keeps to itself what the server refused
                _, there = _send(run_dir, tracking, [], state, init_timeout, finish_timeout)
        except Exception as error:  # of the client: of many types
            abandon()
            return Synced("failed", wandb_client.one_line(error))
        if there < last:
            return Synced("failed", f"W&B has no more than step {there} of {last} after all was sent", sent, there)
        replace(marker, json.dumps(done).encode())
        return Synced("sent" if sent else "has", f"up to step {there}", sent, there)


def _send(
    run_dir: RunDir,
    tracking: TrackingConfig,
    rows: list[dict[str, Any]],
    state: str,
    init_timeout: float,
    finish_timeout: float,
) -> tuple[int, int]:
    """Sends the rows that W&B lacks. Gives their number, and the last step that W&B had before."""
    with TemporaryDirectory(prefix="olmo-hydra-", ignore_cleanup_errors=True) as folder:
        run = wandb_client.init(
            run_dir,
            tracking,
            run_dir.path.name,
            online=True,
            folder=Path(folder),
            init_timeout=init_timeout,
            finish_timeout=finish_timeout,
        )
        there = wandb_client.last_step(run, run_dir)
        lacking = [row for row in rows if row[STEP] > there]
        for row in lacking:
            wandb_client.log(run, row)
        run.summary["state"] = state
        run.finish(exit_code=0 if state in ("Finished", "Paused") else 1)
    return len(lacking), there


def _tracking(run_dir: RunDir) -> TrackingConfig:
    """How the last start tracked the run."""
    starts = starts_of(run_dir)
    node: Any = starts[-1].get("operations", {}).get("tracking") if starts else None
    try:
        node = node or wandb_client.frozen(run_dir)["tracking"]
        return TrackingConfig(**{**node, "wandb": WandbMode(node["wandb"])})
    except (TypeError, KeyError, ValueError) as error:
        what = "does not say how the run is tracked"
        raise RequestError(what, where=str(run_dir.config), instead="a copy of the file") from error


def _confirmed(marker: Path) -> Any:
    try:
        return json.loads(marker.read_text("utf-8"))
    except (OSError, ValueError):
        return None
