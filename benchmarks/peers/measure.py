"""Programs taking turns on one machine."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import busy_cores
from benchmarks.peers.jobs import TOLERANCE, Job, num_params
from benchmarks.peers.programs import Worker, WorkerFailed
from benchmarks.peers.summary import difference, per_step, rate, summary

Say = Callable[[str], None]


def measure(
    names: list[str], job: Job, *, rounds: int, steps: int, pause: float, logs: Path, say: Say
) -> dict[str, Any]:
    """Loads every program once, compares their first losses, and has them take turns.

    Args:
      names: Of programs; ours is the first, since it writes the weights from which all start.
      job: What all of them train.
      rounds: How often every program has its turn; 0 only compares losses.
      steps: Updates in a turn.
      pause: Seconds before a turn, in which the last one's threads go to sleep.
      logs: A folder for what the programs print.
      say: Gets a line now and then.

    Returns:
      For each program its versions, start and first losses, whether these are ours within the tolerance, turns and
      their summary; for one that failed, why: the others go on.

    Raises:
      WorkerFailed: Ours did.
    """
    report: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers = {}
        for name in names:
            try:
                worker = Worker(name, job, logs / f"{name}.log")
            except WorkerFailed as error:
                report[name] = dropped(name, error, say)
                continue
            stack.callback(worker.close)
            workers[name] = worker
            report[name] = worker.loaded | agreement(worker.loaded, workers["ours"].loaded, job)
            say(f"  {name}: ready in {worker.loaded['load_seconds']:.0f} s, {verdict(report[name])}")
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
        for number in range(1, rounds + 1):
            for name, worker in list(workers.items()):
                time.sleep(pause)
                others = busy_cores()
                try:
                    turn = worker.turn(steps)
                except WorkerFailed as error:
                    report[name] = dropped(name, error, say)
                    del workers[name], turns[name]
                    continue
                turns[name].append(turn | {"others_busy_cores": others(turn["cpu_seconds"])})
            say(f"  round {number}: " + ", ".join(said(name, turns[name][-1], job) for name in turns))
    if rounds:
        for name, found in summary(turns, job["batch"] * job["seq_len"]).items():
            report[name] |= {"turns": turns[name], **found}
    return report


def dropped(name: str, error: WorkerFailed, say: Say) -> dict[str, Any]:
    """What is reported of a peer that failed."""
    if name == "ours":
        raise error
    say(f"  {error}")
    return {"failed": str(error)}


def agreement(loaded: dict[str, Any], ours: dict[str, Any], job: Job) -> dict[str, Any]:
    """Whether a program trains the same model: as many parameters, and the same losses of the first updates."""
    off = difference(loaded["losses"], ours["losses"])
    same_size = loaded["num_params"] == num_params(job["model"])
    return {"loss_difference": off, "same_model": same_size and off <= TOLERANCE[job["compute_dtype"]]}


def verdict(found: dict[str, Any]) -> str:
    losses = ", ".join(f"{loss:.4f}" for loss in found["losses"])
    what = "as ours" if found["same_model"] else f"NOT AS OURS ({found['num_params']:,} parameters)"
    return f"losses {losses}: {what}, {found['loss_difference']:.1e} apart"


def said(name: str, turn: dict[str, Any], job: Job) -> str:
    tokens = job["batch"] * job["seq_len"]
    return f"{name} {rate(turn, tokens):.0f} tokens/s, {per_step(turn, 'cpu_seconds'):.2f} CPU s a step"
