"""The run in Weights & Biases: the same rows once more, and never a reason to stop training.

`import wandb` takes seconds, so it happens inside functions. What the client does offline, without a key and without
its server was measured; see the notes at each rule.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from olmo_hydra.config.operations import WandbMode
from olmo_hydra.config.root import Config
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]

# Values of WANDB_MODE, as the client reads them (`dryrun` and `run` are its old names).
_ENVIRONMENT = {
    "online": WandbMode.online,
    "run": WandbMode.online,
    "shared": WandbMode.online,
    "offline": WandbMode.offline,
    "dryrun": WandbMode.offline,
    "disabled": WandbMode.disabled,
}


class WandbRun:
    """One W&B run of one process start; build it with `start`.

    Every row carries `train/step`, the x axis of all charts: after a restart W&B's own `_step` is no longer the
    training step. A failed `log` is told to `unavailable` once, and nothing more is logged.
    """

    def __init__(self, run: Any, unavailable: Callable[[str], None], where: str | None = None, already_there: int = -1):
        self.where = where  # page when online, folder inside the run directory when offline, None without W&B
        self._run = run
        self._unavailable = unavailable
        self._already_there = already_there  # a resumed run repeats steps, number for number, that W&B has
        self._log_failed = False

    def metrics(self, row: Row) -> None:
        """Logs `train/<name>` for every number of the row, and as it is what has a group (`data/epoch`)."""
        self._log(row["step"], {name if "/" in name else f"train/{name}": value for name, value in row.items()})

    def throughput(self, row: Row) -> None:
        """Logs `perf/<name>`."""
        self._log(row["step"], {f"perf/{name}": value for name, value in row.items() if name != "step"})

    def evaluation(self, row: Row) -> None:
        """Logs `eval/bits_per_byte` and `eval/<domain>/bits_per_byte`; a baseline under its suite's name.

        Generated samples stay in the run directory: as a W&B table they would be an artifact.
        """
        if row["suite"] == "samples":
            return
        suite = "eval" if row["suite"] == "heldout" else row["suite"]
        domains = {f"{suite}/{name}/bits_per_byte": domain["bits_per_byte"] for name, domain in row["domains"].items()}
        self._log(row["step"], {f"{suite}/bits_per_byte": row["bits_per_byte"], **domains})

    def finish(self, exit_code: int) -> None:
        """Ends the run with its outcome and waits for the upload, at most the `finish_timeout` of `start`."""
        if self._run is not None:
            try:
                self._run.finish(exit_code=exit_code)
            except Exception as error:  # whatever it is: tracking never stops training
                self._unavailable(f"finish failed: {_one_line(error)}")

    def _log(self, step: int, numbers: Row) -> None:
        if self._run is None or self._log_failed or step < self._already_there:
            return
        try:
            present = {name: value for name, value in numbers.items() if value is not None}
            self._run.log({"train/step": step, **present})
        except Exception as error:
            self._log_failed = True
            self._unavailable(f"log failed: {_one_line(error)}")


def start(
    cfg: Config,
    run_dir: RunDir,
    run_id: str,
    unavailable: Callable[[str], None],
    init_timeout: float = 15.0,
    finish_timeout: float = 60.0,
) -> WandbRun:
    """Starts the W&B run named `run_id`, in the mode that `cfg.tracking.wandb` and the machine allow.

    The same W&B id, kept in the run directory, on every start of a run: online, W&B continues it. Offline there is no
    such thing, and each start leaves another folder. Another directory of the same config (the first was deleted, or is
    on another host) is another W&B run of the same name: neither drops rows that the other wrote.
    Online without a server or a valid key becomes offline, and `unavailable` is told why.

    Args:
      cfg: The composed config; the frozen one, read from `run_dir.config`, is what W&B shows.
      run_dir: The run directory; its `wandb/id` is the W&B id, written at the first start.
      run_id: The run's identity, never a time; the W&B run's name.
      unavailable: Called with one line when W&B does not do what it should.
      init_timeout: Seconds to wait for the server at the start (the client's own default is 90).
      finish_timeout: Seconds to wait for it at the end (the client's own default is for ever).
    """
    mode = _mode(cfg.tracking.wandb)
    if mode is WandbMode.disabled:
        return WandbRun(None, unavailable)
    try:
        return _start(cfg, run_dir, run_id, unavailable, mode, init_timeout, finish_timeout)
    except Exception as error:  # an unwritable folder, a client that does not start
        unavailable(f"init failed: {_one_line(error)}")
        return WandbRun(None, unavailable)


def _start(
    cfg: Config,
    run_dir: RunDir,
    run_id: str,
    unavailable: Callable[[str], None],
    mode: WandbMode,
    init_timeout: float,
    finish_timeout: float,
) -> WandbRun:
    import wandb

    wandb_id = _id(run_dir, run_id)
    settings = wandb.Settings(
        silent=True,  # the client's lines would break the progress bar
        console="off",
        x_disable_stats=True,
        init_timeout=init_timeout,
        finish_timeout=finish_timeout,
        finish_timeout_raises=True,
    )

    def init(mode: str) -> WandbRun:
        # Without `reinit` a second init in one process returns the first run (wandb/wandb#1314).
        run = wandb.init(
            mode=mode,  # type: ignore[arg-type]
            id=wandb_id,
            name=run_id,
            resume="allow" if mode == "online" else None,
            project=cfg.tracking.project,
            entity=cfg.tracking.entity,
            group=cfg.tracking.group,
            job_type="train",
            tags=cfg.tracking.tags,
            config=OmegaConf.to_container(OmegaConf.load(run_dir.config), resolve=True),  # type: ignore[arg-type]
            dir=str(run_dir.path),
            reinit="create_new",
            settings=settings,
        )
        run.define_metric("train/step")
        run.define_metric("*", step_metric="train/step")
        there = run.summary.get("train/step") if run.resumed else None
        where = run.url or os.path.relpath(os.path.dirname(run.dir), run_dir.path)
        return WandbRun(run, unavailable, where, -1 if there is None else int(there))

    problem = None
    if mode is not WandbMode.offline:
        before = set(run_dir.wandb.glob("run-*"))
        try:
            wandb.setup(wandb.Settings(silent=True, mode="online"))  # WANDB_MODE=offline would hide the key
            if wandb.login(prompt=False, verify=False):  # asks neither the user nor the server
                return init("online")
            if mode is WandbMode.online:
                problem = "no API key is configured (`wandb login` stores one)"
        except Exception as error:
            problem = _one_line(error)
            wandb.teardown()  # or the service answers that the id is in use
            for empty in set(run_dir.wandb.glob("run-*")) - before:
                shutil.rmtree(empty)
    if problem is not None:
        unavailable(f"{problem}; continuing offline")
    return init("offline")


def _id(run_dir: RunDir, run_id: str) -> str:
    """The W&B id of this directory: what a first start of the run drew, for good."""
    file = run_dir.wandb / "id"
    if not file.exists():
        run_dir.wandb.mkdir(exist_ok=True)
        replace(file, f"{run_id}-{secrets.token_hex(3)}\n".encode())
    return file.read_text().strip()


def _mode(asked: WandbMode) -> WandbMode:
    """The config's mode; `auto` is WANDB_MODE where that is set."""
    environment = os.environ.get("WANDB_MODE", "")
    if asked is WandbMode.auto and environment in _ENVIRONMENT:
        return _ENVIRONMENT[environment]
    return asked


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
