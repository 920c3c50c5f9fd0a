"""The run in Weights & Biases: the same rows once more, and never a reason to stop training or to hold it up."""

import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import WandbMode
from olmo_hydra.config.root import Config
from olmo_hydra.tracking import wandb_client
from olmo_hydra.tracking.run_dir import Kind, RunDir
from olmo_hydra.tracking.wandb_calls import Calls, abandon
from olmo_hydra.tracking.wandb_client import one_line
from olmo_hydra.tracking.wandb_rows import STEP, Row, finite, history, named

# Values of WANDB_MODE, as the client reads them (`dryrun` and `run` are its old names).
_ENVIRONMENT = {
    "online": WandbMode.online,
    "run": WandbMode.online,
    "shared": WandbMode.online,
    "offline": WandbMode.offline,
    "dryrun": WandbMode.offline,
    "disabled": WandbMode.disabled,
}

OWN_WORK = 15.0  # seconds that importing and starting the client may take besides waiting for the server
MAX_WAITING = 10_000  # rows that may wait for the client


class Opened(NamedTuple):
    """What the client made of a start."""

    run: Any
    where: str  # page when online, folder inside the run directory when offline
    last: int = -1  # step that W&B has
    lacking: Sequence[Row] = ()  # what the record holds and W&B lacks: of starts without it, or on the way at a kill


class WandbRun:
    """One W&B run of one process start; build it with `start`. None of its methods but `finish` ever waits.

    A step is one row, handed over when the next step begins: a step of which a part was sent would stay so, as W&B
    takes each once. The first failure is told to `unavailable`, and nothing more is logged.
    """

    def __init__(
        self,
        run_dir: RunDir,
        unavailable: Callable[[str], None],
        opened: Opened | None = None,
        calls: Calls | None = None,
        finish_timeout: float = 60.0,
    ):
        self.where = None if opened is None else opened.where
        self._run_dir, self._unavailable = run_dir, unavailable
        self._opened, self._calls, self._finish_timeout = opened, calls or Calls(), finish_timeout
        self._step: Row = {}  # rows of the step that is under way
        self._sent: deque[Future[None]] = deque()
        self._failed = False
        if opened is not None and opened.lacking:
            self._sent.append(self._calls.submit(partial(wandb_client.log, opened.run, run_dir, opened.lacking)))

    def metrics(self, row: Row) -> None:
        """Takes a row of metrics.jsonl."""
        self._take("metrics", row)

    def throughput(self, row: Row) -> None:
        """Takes a row of throughput.jsonl."""
        self._take("throughput", row)

    def evaluation(self, row: Row) -> None:
        """Takes a row of evals.jsonl. Generated samples stay in the run directory: in W&B they would be an artifact."""
        self._take("evals", row)

    def finish(self, exit_code: int) -> None:
        """Ends the run with its outcome and waits for the upload, hardly longer than `start` was told."""
        if self._opened is None:
            return
        self._hand_over_if_whole(self._opened)
        ending = self._calls.submit(partial(self._opened.run.finish, exit_code=exit_code))
        self._calls.close()
        try:
            ending.result(timeout=self._finish_timeout + OWN_WORK)
        except Exception as error:  # whatever it is: tracking never stops training
            self._notice()
            self._give_up(f"finish failed: {one_line(error)}")
            abandon()
        self._notice()

    def _hand_over_if_whole(self, opened: Opened) -> None:
        """The last step, unless it was cut: then the next start makes it anew."""
        try:
            rows = history(self._run_dir)
        except (RequestError, OSError):
            return
        if self._step and rows and rows[-1][STEP] == self._step[STEP]:
            self._hand_over(opened)

    def _take(self, kind: Kind, row: Row) -> None:
        if self._opened is None or self._failed or row["step"] <= self._opened.last:
            return
        if self._step and row["step"] != self._step[STEP]:
            self._hand_over(self._opened)
            self._notice()
        self._step = {STEP: row["step"], **self._step, **named(kind, row)}

    def _hand_over(self, opened: Opened) -> None:
        row = finite(self._step)
        self._sent.append(self._calls.submit(partial(wandb_client.log, opened.run, self._run_dir, [row])))
        self._step = {}

    def _notice(self) -> None:
        """Looks at the rows that the client has taken by now."""
        while self._sent and self._sent[0].done():
            error = self._sent.popleft().exception()
            if error is not None:
                self._give_up(f"log failed: {one_line(error)}")
        if len(self._sent) > MAX_WAITING:
            self._give_up(f"log failed: {MAX_WAITING:,} rows wait for the client")

    def _give_up(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._unavailable(why)


def start(
    cfg: Config,
    run_dir: RunDir,
    run_id: str,
    unavailable: Callable[[str], None],
    init_timeout: float = 15.0,
    finish_timeout: float = 60.0,
) -> WandbRun:
    """Starts the W&B run named `run_id`, in the mode that `cfg.tracking.wandb` and the machine allow.

    The same W&B id, kept in the run directory, on every start of a run: online, W&B continues it, and first gets what
    the record holds and it lacks. Offline there is no such thing, and each start leaves another folder. Another
    directory of the same config (the first was deleted, or is on another host) is another W&B run of the same name:
    neither drops rows that the other wrote. Online without a server or a valid key becomes offline, and `unavailable`
    is told why.

    Args:
      cfg: The composed config; the frozen one, read from `run_dir.config`, is what W&B shows.
      run_dir: The run directory, its record rewound; its `wandb/id` is the W&B id, written at the first start.
      run_id: The run's identity, never a time; the W&B run's name.
      unavailable: Called with one line when W&B does not do what it should.
      init_timeout: Seconds to wait for the server at the start (the client's own default is 90).
      finish_timeout: Seconds to wait for it at the end (the client's own default is for ever).
    """
    mode = _mode(cfg.tracking.wandb)
    if mode is WandbMode.disabled:
        return WandbRun(run_dir, unavailable)
    init = partial(
        wandb_client.init,
        run_dir,
        cfg.tracking,
        run_id,
        folder=run_dir.path,
        init_timeout=init_timeout,
        finish_timeout=finish_timeout,
    )
    calls = Calls()
    opening = calls.submit(partial(_open, init, run_dir, mode))
    try:
        opened, problem = opening.result(timeout=init_timeout + OWN_WORK)
    except Exception as error:  # an unwritable folder, a client that does not start
        unavailable(f"init failed: {one_line(error)}")
        calls.close()
        abandon()
        return WandbRun(run_dir, unavailable)
    if problem is not None:
        unavailable(f"{problem}; continuing offline")
    return WandbRun(run_dir, unavailable, opened, calls, finish_timeout)


def _open(init: Callable[..., Any], run_dir: RunDir, mode: WandbMode) -> tuple[Opened, str | None]:
    """A run of the client, and why it is offline if it should not be."""
    problem = None
    if mode is not WandbMode.offline:
        before = set(run_dir.wandb.glob("run-*"))
        try:
            if wandb_client.has_key():
                run = init(online=True)
                last = wandb_client.last_step(run, run_dir)
                lacking = [row for row in history(run_dir) if row[STEP] > last]
                return Opened(run, run.url, last, lacking), None
            if mode is WandbMode.online:
                problem = "no API key is configured (`wandb login` stores one)"
        except Exception as error:
            problem = one_line(error)
            wandb_client.teardown()  # or the service answers that the id is in use
            for empty in set(run_dir.wandb.glob("run-*")) - before:
                shutil.rmtree(empty)
    run = init(online=False)
    return Opened(run, os.path.relpath(os.path.dirname(run.dir), run_dir.path)), problem


def _mode(asked: WandbMode) -> WandbMode:
    """The config's mode; `auto` is WANDB_MODE where that is set."""
    environment = os.environ.get("WANDB_MODE", "")
    if asked is WandbMode.auto and environment in _ENVIRONMENT:
        return _ENVIRONMENT[environment]
    return asked
