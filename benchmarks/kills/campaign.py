"""Many runs, killed in many ways: who is killed when, and what came of it."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.kills.compare import differences
from benchmarks.kills.job import Job
from benchmarks.kills.moments import MOMENTS, Moment

AT_A_TIME = 2
KILLS_A_JOB = 7
LAST = ("last evaluation", "end", "report")


@dataclass
class Tally:
    """What came of a campaign.

    Attributes:
      kills: By the moment that was waited for and what the process was doing.
      starts: Of all runs.
      runs: How many there were.
      faults: By the root of the run that has them, which stays.
    """

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: int = 0
    runs: int = 0
    faults: dict[Path, list[str]] = field(default_factory=dict)


def never_killed(root: Path, extra: Sequence[str] = ()) -> Job:
    """The run that the others are compared with."""
    job = Job(root, ("tracking.wandb=offline", *extra))
    job.killed_at([], Random())
    if job.faults:
        raise RuntimeError(f"the run that is not killed has faults: {job.faults}")
    return job


def campaign(
    folder: Path,
    unbroken: Job,
    kills: int,
    seed: int,
    *,
    extra: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> Tally:
    """Kills runs until `kills` kills are done, and compares each with a run that was never killed.

    Args:
      folder: For the runs; those without a difference are removed.
      unbroken: The run that was not, of the same config.
      kills: At least so many, unless runs end by themselves, with faults, so that none can be killed.
      seed: Decides who is killed when, as far as the machine is the same and as busy.
      extra: Overrides of all runs.
      report: Receives a line a run.
    """
    tally = Tally()

    def one(number: int, mine: list[Moment]) -> Job:
        rng = Random(f"{seed}-{number}")
        wandb = "offline" if any("W&B" in moment.name for moment in mine) or rng.random() < 0.3 else "disabled"
        job = Job(folder / f"run-{number:03}", (f"tracking.wandb={wandb}", *extra))
        shutil.copytree(unbroken.root / "cache", job.root / "cache")
        job.killed_at(mine, rng)
        return job

    with ThreadPoolExecutor(AT_A_TIME) as threads:
        while tally.kills.total() < kills:  # again where some moments did not come
            before, number = tally.kills.total(), tally.runs
            waiting = _plan(kills - before, Random(seed + number))
            for job in threads.map(lambda numbered: one(*numbered), enumerate(waiting, number)):
                job.faults += differences(job, unbroken)
                _add(job, tally, report)
            if tally.faults and tally.kills.total() == before:
                break
    return tally


def _plan(kills: int, rng: Random) -> list[list[Moment]]:
    """Which moments are whose: those of the preparation come first, those of the end last."""
    drawn: list[Moment] = []
    while len(drawn) < kills:
        drawn += rng.sample(MOMENTS, min(len(MOMENTS), kills - len(drawn)))
    rng.shuffle(drawn)
    jobs = [drawn[start : start + KILLS_A_JOB] for start in range(0, len(drawn), KILLS_A_JOB)]
    return [sorted(job, key=_when) for job in jobs]


def _when(moment: Moment) -> int:
    return LAST.index(moment.name) + 1 if moment.name in LAST else -(moment.needs == "cold")


def _add(job: Job, tally: Tally, report: Callable[[str], None]) -> None:
    tally.kills += job.kills
    tally.starts += job.starts
    tally.runs += 1
    killed = ", ".join(f"{name} ({doing})" for name, doing in job.kills)
    report(f"{job.root.name}: {job.kills.total()} kills, {len(job.faults)} faults: {killed}")
    if job.faults:
        tally.faults[job.root] = job.faults
        for fault in job.faults:
            report(f"  {fault}")
    else:
        shutil.rmtree(job.root)
