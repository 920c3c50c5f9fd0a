"""The audit of a corpus as a picture: SVG that opens in any browser, on light and on dark."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, MARGIN = 1400, 24
NAME, NUMBERS = 300, 300  # beside the bars, left and right
BAR, ROW = 18, 26
LABELS, PROCESSES = 40, 16  # shown; what is beyond is summed
COLOURS = {"once": "#3f8f5f", "never": "#9aa3ad", "repeated": "#d1495b", "dropped": "#d9a441"}
WORDS = {"once": "read once", "never": "not read", "repeated": "read more than once", "dropped": "in no instance"}
STYLE = (
    "text{font:15px system-ui,sans-serif;fill:#333}.title{font-size:20px;font-weight:600}.quiet{fill:#6b737c}"
    ".number{text-anchor:end}.page{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.quiet{fill:#9aa3ad}.page{fill:#16181c}}"
)


class Bar(NamedTuple):
    """A label's instances in an epoch, and what of its files is in no instance, as instances."""

    name: str
    once: int
    never: int
    repeated: int
    dropped: float

    @property
    def size(self) -> float:
        return self.once + self.never + self.repeated + self.dropped


def picture(title: str, verdict: str, bars: Sequence[Bar], repeated_KN: np.ndarray) -> str:
    """An SVG file: a bar a label, and below it the epoch from its first batch to its last, a row a process.

    Args:
      title: What was audited.
      verdict: What was found.
      bars: The largest ones are shown.
      repeated_KN: For each piece of the epoch and each process, the share of its reads that had been read before.
    """
    y = MARGIN + 20
    body = [_text(MARGIN, y, title, "title"), _text(MARGIN, y + 26, verdict)]
    body += _legend(y + 58)
    y += 84
    for bar in _largest(bars):
        body += _bar(bar, y)
        y += ROW
    words = "The epoch, from its first batch to its last, by process: green is read first, red was read before."
    body.append(_text(MARGIN, y + 34, words, "quiet"))
    strip, y = _strip(repeated_KN, y + 54)
    height = y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f'<title>{escape(title)}</title><style>{STYLE}</style><rect class="page" width="100%" height="100%"/>'
        f"{''.join([*body, *strip])}</svg>\n"
    )


def _largest(bars: Sequence[Bar]) -> list[Bar]:
    shown = sorted(bars, key=lambda bar: -bar.size)
    if len(shown) <= LABELS:
        return shown
    rest = shown[LABELS - 1 :]
    sums = (sum(getattr(bar, field) for bar in rest) for field in COLOURS)
    return [*shown[: LABELS - 1], Bar(f"{len(rest)} others", *sums)]


def _legend(y: int) -> list[str]:
    body, x = [], MARGIN
    for name, colour in COLOURS.items():
        body += [_rectangle(x, y - 13, 16, 16, colour), _text(x + 24, y, WORDS[name])]
        x += 60 + 8 * len(WORDS[name])
    return body


def _bar(bar: Bar, y: int) -> list[str]:
    name = bar.name if len(bar.name) <= 36 else f"{bar.name[:17]}…{bar.name[-18:]}"
    body = [_text(MARGIN, y + 14, name)]
    x, room = float(MARGIN + NAME), WIDTH - 2 * MARGIN - NAME - NUMBERS
    for field, colour in COLOURS.items():
        share = getattr(bar, field) / bar.size if bar.size else 0
        if share:
            body.append(_rectangle(x, y, room * share, BAR, colour))
            x += room * share
    total = bar.once + bar.never + bar.repeated
    numbers = f"{total:,} instances, {bar.repeated:,} repeated"
    return [*body, _text(WIDTH - MARGIN, y + 14, numbers, "number quiet")]


def _strip(repeated_KN: np.ndarray, y: int) -> tuple[list[str], int]:
    n_processes = repeated_KN.shape[1]
    groups = np.array_split(np.arange(n_processes), min(n_processes, PROCESSES))
    room = (WIDTH - 2 * MARGIN - NAME) / len(repeated_KN)
    width = room - 1 if room > 4 else room
    body = []
    for group in groups:
        name = f"process {group[0]}" if len(group) == 1 else f"processes {group[0]} to {group[-1]}"
        body.append(_text(MARGIN, y + 14, name, "quiet"))
        for k, share in enumerate(repeated_KN[:, group].mean(axis=1)):
            x, red = MARGIN + NAME + k * room, BAR * share
            body.append(_rectangle(x, y, width, BAR, COLOURS["once"]))
            if red:
                body.append(_rectangle(x, y + BAR - red, width, red, COLOURS["repeated"]))
        y += BAR + 3
    return body, y


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'
