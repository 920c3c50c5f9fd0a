"""The programs that are measured, and where the environments of peers are."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import IO, Any

from benchmarks.peers.jobs import Job

ROOT = Path(__file__).resolve().parents[2]
INSTALL = "benchmarks/peers/install"
PATIENCE = 1200.0  # seconds for an answer


@dataclass(frozen=True)
class Program:
    """What a worker runs.

    Attributes:
      title: For people.
      module: By which an environment that has it is known.
      color: In plots.
      variables: Environment that it wants.
    """

    title: str
    module: str
    color: str
    variables: dict[str, str] = field(default_factory=dict)


PROGRAMS = {
    "ours": Program("olmo_hydra", "olmo_hydra", "#2a6f97", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}),
    "olmo_core": Program("OLMo-core, torch.compile", "olmo_core", "#c1666b"),
    "hugging_face": Program(
        "Hugging Face, torch.compile",
        "transformers",
        "#d4a017",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "maxtext": Program("MaxText", "maxtext", "#6a994e", {"DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu"}),
}


def environments() -> Path:
    """The folder with an environment for each peer: OLMO_HYDRA_PEERS, or `.venv-peers` in the repository."""
    return Path(os.environ.get("OLMO_HYDRA_PEERS") or ROOT / ".venv-peers")


def interpreter(name: str) -> Path | None:
    """That of a program's environment, or this one if the program is installed here; None if it is nowhere."""
    python = environments() / name / "bin" / "python"
    if python.exists():
        return python
    return Path(sys.executable) if find_spec(PROGRAMS[name].module) else None


class WorkerFailed(Exception):
    """A worker ended, or said something else than it should."""


class Worker:
    """A process of one program.

    Attributes:
      loaded: What it said when it was ready: parameters, versions, losses of the first updates, seconds.
    """

    def __init__(self, name: str, job: Job, log: Path, until: float = math.inf):
        """Starts the process and waits until it is warm.

        Args:
          name: Of `PROGRAMS`.
          job: What it trains.
          log: Gets what it prints.
          until: When it is killed whatever it is doing, by `time.monotonic`. An answer may take `PATIENCE` seconds.

        Raises:
          WorkerFailed: It cannot do the job.
        """
        self.name, self._log, self._until = name, log, until
        with log.open("wb") as printed:
            self._process = subprocess.Popen(
                [str(interpreter(name)), "-m", "benchmarks.peers.worker", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
                cwd=ROOT,
                env=os.environ | PROGRAMS[name].variables,
            )
        self.loaded = self._ask(job)

    def turn(self, steps: int) -> dict[str, Any]:
        """Updates in a row: wall and processor seconds of all together, and their losses."""
        return self._ask({"steps": steps})

    def close(self) -> None:
        """Ends the process."""
        try:
            self._process.communicate(timeout=self._left())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        began, seconds = time.monotonic(), self._left()
        alarm = Timer(seconds, self._process.kill)
        alarm.start()
        try:
            _pipe(self._process.stdin).write(json.dumps(what) + "\n")
            _pipe(self._process.stdin).flush()
            answer = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            answer = ""
        finally:
            alarm.cancel()
        if not answer:
            self._process.kill()
            self._process.wait()
            said = self._log.read_text(errors="replace").strip().splitlines()
            ended = "ended" if time.monotonic() - began < seconds else f"was ended after {seconds:.0f} s"
            raise WorkerFailed(f"{self.name} {ended}: {' '.join(said[-2:]) or 'it said nothing'} (all: {self._log})")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _left(self) -> float:
        """Seconds for an answer."""
        return max(0.0, min(PATIENCE, self._until - time.monotonic()))


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
