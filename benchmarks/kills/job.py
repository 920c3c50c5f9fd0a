"""One run that is killed and started again until it is done."""

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.kills.moments import EVALUATES_EVERY, Moment
from benchmarks.kills.tiny import command, environment
from benchmarks.kills.view import View

TAG, STEPS = "kills", 48
OVERRIDES = (
    *(f"run.tag={TAG}", f"train.steps={STEPS}", f"eval.every={EVALUATES_EVERY}"),
    *("checkpoint.every=16", "checkpoint.ephemeral_every=4", "checkpoint.keep=2"),
    *("data.tokenizer=bpe:300", "model.vocab_size=300", "data.instances=packed", "data.document_mask=true"),
)
PREPARED = ("data", "order", "packing")  # folders of the cache that are functions of the config
POLL = 0.001  # seconds
PATIENCE = 600.0  # seconds for one start
MARK = "OLMO_HYDRA_KILLS"


@dataclass
class Job:
    """A run in a root of its own.

    Attributes:
      root: Its `run.root`, with or without a cache.
      extra: Overrides of operations, the same at every start.
      faults: What went wrong.
      kills: How often it was killed, by the moment that was waited for and by what it was doing then.
      starts: How often it was started.
      recorded: How many of the starts are in its events.
    """

    root: Path
    extra: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: int = 0
    recorded: int = 0

    def __post_init__(self) -> None:
        self.view = View(self.root, TAG)
        self._events: list[bytes] = []
        (self.root / "tmp").mkdir(parents=True, exist_ok=True)

    def killed_at(self, moments: list[Moment], rng: Random) -> None:
        """Starts the run and kills it at each of the moments that comes, and then lets it end."""
        for moment in moments:
            if moment.needs == "cold" and self.view.run is None:
                for folder in PREPARED:
                    shutil.rmtree(self.root / "cache" / folder, ignore_errors=True)
            if moment.needs == "checkpoint" and not self.view.steps():
                continue
            if not self._killed(moment, rng):
                break
        self._ended()  # also where it had finished: the report may be missing
        self._look_for_survivors()

    def _killed(self, moment: Moment, rng: Random) -> bool:
        """False if the run ended before the moment came."""
        with self._start() as process:
            due = moment.watch(self.view, rng, STEPS)
            until = time.monotonic() + PATIENCE
            while not due():
                if process.poll() is not None or time.monotonic() > until:
                    return self._has_ended(process) and False
                time.sleep(POLL)
            time.sleep(rng.uniform(0, moment.delay))
            if process.poll() is not None:
                return self._has_ended(process) and False
            self._kill(process, rng)
        self.kills[moment.name, self.view.doing(EVALUATES_EVERY)] += 1
        self._look_at_events()
        return True

    def signalled(self, moment: Moment, *numbers: signal.Signals) -> tuple[int | None, str]:
        """Starts the run and sends it signals at a moment; gives the status it exits with, None if the moment never
        came, and what it has said."""
        with self._start() as process:
            due = moment.watch(self.view, Random(0), STEPS)
            while not due() and process.poll() is None:
                time.sleep(POLL)
            came = process.poll() is None
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.05)  # two of a kind that wait are one
            status = process.wait(PATIENCE)
        self._look_at_events()
        self._look_for_survivors()
        return status if came else None, self._log.read_text(errors="replace")

    def _ended(self) -> bool:
        with self._start() as process:
            return self._has_ended(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command(self.root, *OVERRIDES, *self.extra),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment() | {MARK: str(self.root), "TMPDIR": str(self.root / "tmp")},
                cwd=self.root,
            )

    def _kill(self, process: "subprocess.Popen[bytes]", rng: Random) -> None:
        """The first process, or, of several, any of them or all at once."""
        others = [pid for pid in self._alive() if pid != process.pid and b"train.py" in _read(pid, "cmdline")]
        victims = rng.choice([[process.pid, *others], *([pid] for pid in (process.pid, *others))])
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            self.faults.append(f"60 s after {victims} were killed, process 0 ({process.pid}) is still there")
            process.kill()
            process.wait()

    def _has_ended(self, process: "subprocess.Popen[bytes]") -> bool:
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
        self._look_at_events()
        said = self._log.read_text(errors="replace")
        if status != 0:
            self.faults.append(f"start {self.starts} ended with {status}: {said[-1500:]}")
        elif "Traceback" in said or "Error" in said:
            self.faults.append(f"start {self.starts} said: {said[:1500]}")
        return status == 0

    def _look_at_events(self) -> None:
        """Events are history: none goes, and a start adds one beginning at most."""
        now = self.view.lines("events")
        if now[: len(self._events)] != self._events:
            self.faults.append(f"events that were there are gone or changed after start {self.starts}")
        begun = sum(kind in ("started", "resumed") for kind in self.view.events()[len(self._events) :])
        if begun > 1:
            self.faults.append(f"start {self.starts} has {begun} beginnings in the events")
        self.recorded += begun
        self._events = now

    def _look_for_survivors(self) -> None:
        until = time.monotonic() + 20
        while self._alive() and time.monotonic() < until:
            time.sleep(0.1)
        for pid in self._alive():
            self.faults.append(f"still alive: {_read(pid, 'cmdline').decode(errors='replace')}")

    def _alive(self) -> list[int]:
        """Processes that a start of this run has left behind."""
        mark = f"{MARK}={self.root}".encode()
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if mark in _read(pid, "environ").split(b"\0") and _read(pid, "cmdline")]

    @property
    def _log(self) -> Path:
        return self.root / "tmp" / f"start-{self.starts}.log"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""
