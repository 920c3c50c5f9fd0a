"""A run's record to W&B, later: each step exactly once, whatever the run, or an earlier upload, has sent already.

`wandb sync` of the client's own files cannot do it: they begin anew at each start, overlap, and lose their ends.
"""

import json
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import TrackingConfig, WandbMode
from olmo_hydra.tracking import wandb_client
from olmo_hydra.tracking.documents import as_written, load_json
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.history import starts_of
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_calls import abandon
from olmo_hydra.tracking.wandb_rows import STEP, Row, history

BATCH = 1 << 22  # bytes of rows; a request of the client holds 10 MB


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
    state, writer = run_dir.state()
    if writer is not None:
        return Synced("left", f"is being written by {writer}")
    tracking = _tracking(run_dir)
    if tracking.wandb is WandbMode.disabled:
        return Synced("left", "tracking.wandb=disabled")
    with run_dir.lock():
        rows = history(run_dir)
        if not rows:
            return Synced("left", "has no rows")
        last = rows[-1][STEP]
        done = {"server": wandb_client.server(), "entity": tracking.entity, "project": tracking.project,
                "step": last, "state": state}  # fmt: skip
        marker = run_dir.wandb / "synced.json"
        if load_json(marker) == done:
            return Synced("has", "all of it", 0, last)
        sent, before, there = 0, -2, -1
        try:
            while there < last:  # the client keeps to itself what the server refused: asking anew is what confirms
                there, more = _session(run_dir, tracking, rows, state, init_timeout, finish_timeout)
                if there <= before < last:
                    return Synced("failed", f"W&B keeps no more than step {there} of {last}", sent, there)
                before, sent = there, sent + more
        except Exception as error:  # of the client: of many types
            abandon()
            return Synced("failed", wandb_client.one_line(error), sent)
        replace(marker, json.dumps(done).encode())
        return Synced("sent" if sent else "has", f"up to step {there}", sent, there)


def _session(
    run_dir: RunDir, tracking: TrackingConfig, rows: list[Row], state: str, init_timeout: float, finish_timeout: float
) -> tuple[int, int]:
    """Asks for the last step that W&B has, and sends the next rows, of no more bytes than go in one request.

    With more, the first request would have the summary of rows that come in a later one, and who is killed between
    them could not tell, by what the client says, which of the rows are there.

    Returns:
      That last step (-1: none), and the number of rows sent after it.
    """
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
        sizes = accumulate(len(json.dumps(row)) for row in lacking)
        batch = [row for row, size in zip(lacking, sizes, strict=True) if size <= BATCH] or lacking[:1]
        wandb_client.log(run, run_dir, batch)
        run.summary["state"] = state
        run.finish(exit_code=0 if state in ("Finished", "Paused") else 1)
    return there, len(batch)


def _tracking(run_dir: RunDir) -> TrackingConfig:
    """How the last start tracked the run."""
    starts = starts_of(run_dir)
    with as_written(run_dir.path, "how the run is tracked"):
        node = starts[-1]["operations"]["tracking"] if starts else wandb_client.frozen(run_dir)["tracking"]
        return TrackingConfig(**{**node, "wandb": WandbMode(node["wandb"])})
