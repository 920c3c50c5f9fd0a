"""What a report is made of, without saying how it looks: a page of sections of blocks.

All text is plain text; a renderer escapes it. The HTML page is one rendering; another, a W&B report, needs only its own
renderer.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

Number = float | int | None


class Role(Enum):
    """What a series is, from which a renderer takes its looks."""

    main = "main"  # what the chart is about
    part = "part"  # one of several parts of it
    raw = "raw"  # the unsmoothed data behind a main series
    baseline = "baseline"  # a level to compare with
    mark = "mark"  # single steps worth a mark


@dataclass(frozen=True)
class Series:
    """One curve. `y` holds None where a value was not finite."""

    name: str
    x: list[Number]
    y: list[Number]
    role: Role = Role.main


@dataclass(frozen=True)
class Chart:
    """Curves over one x axis; axis titles carry the unit. `from_zero` keeps differences of a rate in proportion;
    `whole` shows the x axis from its beginning.
    """

    kind: ClassVar[str] = "chart"
    id: str
    title: str
    x_title: str
    y_title: str
    series: list[Series]
    note: str = ""
    log_y: bool = False
    from_zero: bool = False
    whole: bool = True


@dataclass(frozen=True)
class Table:
    """The first `text_columns` columns are words, the others numbers. The last row may be a total."""

    kind: ClassVar[str] = "table"
    columns: list[str]
    rows: list[list[str]]
    text_columns: int = 1
    total: bool = False
    note: str = ""


@dataclass(frozen=True)
class Shares:
    """Parts of a whole, by name, that sum to 1: one bar, the first part being what it is about."""

    kind: ClassVar[str] = "shares"
    parts: list[tuple[str, float]]


@dataclass(frozen=True)
class Facts:
    """Label and value, under a heading."""

    kind: ClassVar[str] = "facts"
    title: str
    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    kind: ClassVar[str] = "prose"
    text: str


@dataclass(frozen=True)
class Samples:
    """Prompt and what the model wrote after it, or a heading and a text; under a caption to fold them by, if given."""

    kind: ClassVar[str] = "samples"
    samples: list[tuple[str, str]]
    caption: str = ""
    folded: bool = False
    note: str = ""


@dataclass(frozen=True)
class Code:
    """Text to copy or to look up; folded away under its caption when `folded`."""

    kind: ClassVar[str] = "code"
    caption: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Link:
    """Another page of the run directory, by its file's name."""

    kind: ClassVar[str] = "link"
    file: str
    text: str


Block = Chart | Table | Shares | Facts | Prose | Samples | Code | Link


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. Neighbouring charts and facts may stand side by side."""

    id: str
    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class Page:
    """A whole report: a title, the state of the run, the verdict in one or two sentences, key numbers, and sections."""

    title: str
    state: str
    finished: bool
    verdict: str
    key_numbers: list[tuple[str, str, str]]  # label, value, remark
    sections: list[Section] = field(default_factory=list)

    def charts(self) -> list[Chart]:
        """All charts, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]
