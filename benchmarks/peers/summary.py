"""From turns to medians and ratios, each with its spread."""

import statistics
from typing import Any

import numpy as np

Turn = dict[str, Any]  # what `worker.turn` answers
Turns = dict[str, list[Turn]]  # of each program, one a round


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(turns: Turns, tokens_per_step: int) -> dict[str, dict[str, Any]]:
    """What a benchmark says of each program.

    Tokens a second, processor seconds of an update, and, of all but ours, how many times faster ours was. A ratio is of
    two turns of one round, which lie side by side in time, so that load on the machine meets both; its spread is over
    rounds. `times_by_cpu` is the same in processor seconds, of which other load takes none.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, of_program in turns.items():
        found[name] = {
            "tokens_per_second": spread([rate(turn, tokens_per_step) for turn in of_program]),
            "cpu_seconds": spread([per_step(turn, "cpu_seconds") for turn in of_program]),
        }
        if name != "ours":
            pairs = list(zip(turns["ours"], of_program, strict=True))
            for field, key in (("times", "seconds"), ("times_by_cpu", "cpu_seconds")):
                found[name][field] = spread([per_step(theirs, key) / per_step(ours, key) for ours, theirs in pairs])
    return found


def per_step(turn: Turn, key: str) -> float:
    """Seconds of one update of a turn."""
    return float(turn[key]) / len(turn["losses"])


def rate(turn: Turn, tokens_per_step: int) -> float:
    """Tokens a second of a turn."""
    return tokens_per_step / per_step(turn, "seconds")


def difference(losses: list[float], ours: list[float]) -> float:
    """The largest difference of two programs' first losses, relative to ours."""
    return float(np.max(np.abs(np.subtract(losses, ours)) / np.abs(ours)))  # a NaN stays one
