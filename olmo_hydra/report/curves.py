"""Curves from rows: smoothed for the eye, and thinned so that a page stays light without losing spikes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from olmo_hydra.report.content import Number, Role, Series

MAX_POINTS = 2000


def curve(name: str, rows: Iterable[dict[str, Any]], column: str, role: Role = Role.main) -> Series:
    """A column over `step`. Rows without the column are left out."""
    points = [(row["step"], row[column]) for row in rows if column in row]
    return Series(name, [step for step, _ in points], [value for _, value in points], role)


def smooth(series: Series, name: str, width: int) -> Series:
    """The mean of the `width` values around each (odd; fewer at both ends); missing values are left out."""
    half = width // 2
    y: list[Number] = []
    for i in range(len(series.y)):
        window = [value for value in series.y[max(0, i - half) : i + half + 1] if value is not None]
        y.append(sum(window) / len(window) if window else None)
    return Series(name, series.x, y)


def thin(series: Series, limit: int = MAX_POINTS) -> Series:
    """About `limit` points at most: of each stretch the lowest, the highest and, if there is one, a missing value."""
    x, y = series.x, series.y
    if len(x) <= limit:
        return series
    stride = -(-2 * len(x) // limit)
    kept: set[int] = {0, len(x) - 1}
    for begin in range(0, len(x), stride):
        stretch = range(begin, min(begin + stride, len(x)))
        present = [(value, i) for i in stretch if (value := y[i]) is not None]
        kept.update([i for i in stretch if y[i] is None][:1])
        if present:
            kept.update((min(present)[1], max(present)[1]))
    return replace(series, x=[x[i] for i in sorted(kept)], y=[y[i] for i in sorted(kept)])
