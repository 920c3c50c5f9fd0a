"""Files that are one document each."""

from collections.abc import Callable, Iterator
from pathlib import Path

from olmo_hydra.data.text.sources.registry import NOT_UTF8, UNREADABLE, Document, LeftOut
from olmo_hydra.data.text.sources.streams import DAMAGED, damage, opened

BINARY = "binary"
LONGEST_LINE, LONGEST_MEAN_LINE = 1000, 100  # characters; beyond them code is data or generated (arXiv 2305.06161)


def text_file(name: str, path: Path) -> Iterator[Document | LeftOut]:
    """A UTF-8 file as one document."""
    yield _read(name, path)


def code_file(name: str, path: Path) -> Iterator[Document | LeftOut]:
    """As `text_file`, but for lines that nobody writes by hand."""
    found = _read(name, path)
    if isinstance(found, Document):
        lengths = [len(line) for line in found.text.splitlines()] or [0]
        if max(lengths) > LONGEST_LINE or sum(lengths) > LONGEST_MEAN_LINE * len(lengths):
            found = LeftOut(name, "long lines")
    yield found


def converted_file(convert: Callable[[str], str], name: str, path: Path) -> Iterator[Document | LeftOut]:
    """As `text_file`, after `convert` has taken the markup away."""
    found = _read(name, path)
    if isinstance(found, Document):
        text = convert(found.text)
        found = Document(name, text) if text.strip() else LeftOut(name, "no text")
    yield found


def checked(name: str, text: str) -> Document | LeftOut:
    """A document, unless a text cannot be one: NUL stands in no text, and a lone surrogate has no UTF-8."""
    if "\0" in text:
        return LeftOut(name, BINARY)
    try:
        text.encode()
    except UnicodeEncodeError:
        return LeftOut(name, NOT_UTF8)
    return Document(name, text)


def _read(name: str, path: Path) -> Document | LeftOut:
    try:
        with opened(path) as stream:
            raw = stream.read()
    except DAMAGED:
        return LeftOut(name, damage(path))
    except OSError:
        return LeftOut(name, UNREADABLE)
    if b"\0" in raw:
        return LeftOut(name, BINARY)
    try:
        return Document(name, raw.decode())
    except UnicodeDecodeError:
        return LeftOut(name, NOT_UTF8)
