"""The W&B client, as the live run and `olmo-hydra runs --sync` use it: one id a run directory, one row a step.

`import wandb` takes seconds, so it happens inside functions. What the client does offline, without a key and without
its server was measured; see the notes at each rule.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import TrackingConfig
from olmo_hydra.tracking.documents import load_yaml
from olmo_hydra.tracking.files import read, refuse_foreign_link, replace
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_reached import keep_reached, reached
from olmo_hydra.tracking.wandb_rows import STEP, Row

MAX_ID = 1000  # bytes


class Untrue(Exception):
    """The server says something of a run that cannot be."""


def has_key() -> bool:
    """Whether an API key is configured; asks neither the user nor the server, and raises what the client says of it."""
    import wandb

    wandb.setup(wandb.Settings(silent=True, mode="online"))  # WANDB_MODE=offline would hide the key
    return wandb.login(prompt=False, verify=False)


def server() -> str:
    """Address of the server that the machine's settings name."""
    import wandb

    return str(wandb.setup().settings.base_url)


def teardown() -> None:
    """Ends every run of the process, and the client's service."""
    import wandb

    wandb.teardown()


def init(
    run_dir: RunDir,
    tracking: TrackingConfig,
    name: str,
    *,
    online: bool,
    folder: Path,
    init_timeout: float,
    finish_timeout: float,
) -> Any:
    """A run of the client: begun, or online continued where W&B has it already.

    Args:
      run_dir: The run; W&B shows its frozen config.
      tracking: Project, entity, group and tags.
      name: The run's name in W&B.
      online: Whether to ask the server; else the rows go to a file.
      folder: Where the client's own files go.
      init_timeout: Seconds to wait for the server.
      finish_timeout: Seconds that the run's `finish` waits for it, before it raises.
    """
    import wandb

    # Without `reinit` a second init in one process returns the first run (wandb/wandb#1314).
    run = wandb.init(
        mode="online" if online else "offline",
        id=wandb_id(run_dir, name),
        name=name,
        resume="allow" if online else None,
        project=tracking.project,
        entity=tracking.entity,
        group=tracking.group,
        job_type="train",
        tags=tracking.tags,
        config=frozen(run_dir),
        dir=str(folder),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,  # the client's lines would break the progress bar
            console="off",
            x_disable_stats=True,
            init_timeout=init_timeout,
            finish_timeout=finish_timeout,
            finish_timeout_raises=True,
        ),
    )
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    return run


def log(run: Any, run_dir: RunDir, rows: Sequence[Row]) -> None:
    """Logs all that W&B gets of some steps, ascending: its own count of steps is ours, and what it has it ignores."""
    if rows:
        keep_reached(run_dir, rows[-1][STEP])
    for row in rows:
        run.log(row, step=row[STEP], commit=True)


def last_step(run: Any, run_dir: RunDir) -> int:
    """The last step that W&B has of the run, -1 for none: by its history and its summary, whichever is further.

    Raises:
      Untrue: It cannot have that step, as the run never came there; or its summary is of none. The run is finished.
    """
    if not run.resumed:
        return -1
    last, summed = run.starting_step - 1, run.summary.get(STEP, -1)
    horizon = frozen(run_dir)["train"]["steps"]
    furthest = min(reached(run_dir), horizon)
    false = [told for told in (last, summed) if type(told) is not int or not -1 <= told <= furthest]
    if false:
        # The client tells the server again what it has read of the summary: without this the lie would stay there.
        true = max([0, *(told for told in (last, summed) if told not in false)])
        run.summary.update(dict.fromkeys((STEP, "_step"), true))
        run.finish(exit_code=1)
        raise Untrue(
            f"W&B says that it has step {str(false[0])[:40]!r} of this run of {horizon}, which cannot be: "
            f"it came to {furthest}"
        )
    return int(last)


def frozen(run_dir: RunDir) -> dict[str, Any]:
    """The frozen config, as plain data: nothing in it is resolved."""
    content = load_yaml(run_dir.config)
    if not isinstance(content, dict):
        raise RequestError("is not a config", where=str(run_dir.config), instead="a copy of the file")
    return content


def wandb_id(run_dir: RunDir, name: str) -> str:
    """The W&B id of this directory: what its first start, or its first upload, drew, for good."""
    file = run_dir.wandb / "id"
    refuse_foreign_link(run_dir.wandb)
    kept = read(file, MAX_ID)
    if kept is None:
        kept = f"{name}-{secrets.token_hex(3)}\n".encode()
        run_dir.wandb.mkdir(exist_ok=True)
        replace(file, kept)
    return kept.decode().strip()


def one_line(error: BaseException) -> str:
    """An error of the client in one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
