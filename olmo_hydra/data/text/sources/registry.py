"""What a source of text gives, and the table of sources by the name that `data.domains.<domain>.source` gives.

To add a source, write a function from a `DomainConfig` to `Unit`s in a module of this package, register it with
`@source(name)` and import the module in `__init__.py`. What it cannot read it gives as `LeftOut`, so that nothing is
missing silently. A piece names its file, or a unit its origin or a version: that tells when the text has changed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices, nearest

NOT_INSTALLED = "not installed"
NOT_UTF8 = "not UTF-8"
UNREADABLE = "unreadable"
UNIT_BYTES = 8 << 20  # a few seconds of work for one process, and enough units to keep many busy
SEPARATOR = "\n\n\n"  # between passages: a docstring has one blank line inside, so two tell where it ends


@dataclass(frozen=True)
class Document:
    """A text; `name` is unique inside its domain, as far as records of a file have ids of their own.

    `passages` are the parts of a text that collects them (docstrings): each may occur in other documents too, and only
    its first occurrence is kept.
    """

    name: str
    text: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Something that gave no document, and why; counted by reason in the manifest."""

    name: str
    reason: str


@dataclass(frozen=True)
class Origin:
    """What is published and text comes from: its kind (`deb`, `pypi`, `huggingface`), name and version, sha256 of its
    archive. A data set has no archive; its version is its revision and the library's fingerprint."""

    kind: str
    package: str
    version: str
    sha256: str


Read = Callable[[], Iterable[Document | LeftOut]]


@dataclass(frozen=True)
class Piece:
    """The smallest part of a text that can be read alone: a file, or a part of one; its size in bytes, and its path."""

    name: str
    size: int
    read: Read
    path: Path | None = None


@dataclass(frozen=True)
class Unit:
    """A piece of a domain that any process can read alone.

    Attributes:
      name: Unique inside the domain.
      read: Gives the documents of the piece, in a fixed order; can be pickled.
      origin: The package it comes from, if it comes from one that is fetched.
      files: That it reads, if it is no package's.
      version: Changes with the text, where neither of them does.
    """

    name: str
    read: Read
    origin: Origin | None = None
    files: tuple[Path, ...] = ()
    version: str = ""

    def state(self) -> list[Any]:
        """What tells whether the text is still the same, as JSON values: sizes and times of files, or a version."""
        if self.origin is not None:
            return [self.name, *astuple(self.origin)]
        states = ((str(file.resolve()), file.stat()) for file in self.files if file.is_file())
        return [self.name, self.version, [[file, state.st_size, state.st_mtime_ns] for file, state in states]]


FIELDS = {field.name for field in fields(DomainConfig)}
Source = Callable[[DomainConfig], list[Unit]]
SOURCES: dict[str, Source] = {}


def source(name: str) -> Callable[[Source], Source]:
    """Decorator: registers a function as the source of that name."""

    def register(function: Source) -> Source:
        SOURCES[name] = function
        return function

    return register


def units(domain: str, cfg: DomainConfig) -> list[Unit]:
    """The pieces of a domain in the order of its documents, which depends on its text alone.

    Raises:
      RequestError: A source or a setting is wrong, with its full key. Reading a unit raises it too, for a file of
        which nothing can be read.
    """
    if cfg.source not in SOURCES:
        near = nearest(cfg.source, SOURCES)
        raise RequestError(
            "is no source of text",
            key=f"data.domains.{domain}.source",
            value=cfg.source,
            instead=(f"{near}; all: " if near else "") + choices(sorted(SOURCES)),
        )
    with _full_key(domain):
        planned = SOURCES[cfg.source](cfg)
    return [replace(unit, read=partial(_read, domain, unit.read)) for unit in planned]


def _read(domain: str, read: Read) -> Iterator[Document | LeftOut]:
    with _full_key(domain):
        yield from read()


@contextmanager
def _full_key(domain: str) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        if error.key is None or error.key in FIELDS:
            error.key = ".".join(["data.domains", domain, *([error.key] if error.key else [])])
        raise
