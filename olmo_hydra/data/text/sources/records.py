"""Records with a text in one of their fields: JSON lines, and what all kinds of records share."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources.plain import checked
from olmo_hydra.data.text.sources.registry import NOT_UTF8, UNIT_BYTES, UNREADABLE, Document, LeftOut, Piece
from olmo_hydra.data.text.sources.streams import COMPRESSED, DAMAGED, damage, opened

BLOCK = 1 << 20
NOT_JSON = "not a JSON object"
PARAGRAPHS = "\n\n"  # between the strings of a list

Row = tuple[int, dict[str, Any] | LeftOut]  # the number of a record in its file, counted from 1


def json_lines_pieces(name: str, path: Path, size: int, text_field: str) -> Iterator[Piece]:
    """A file of JSON lines; a long one that is not compressed in pieces, so that many processes can share it."""
    if size == 0:
        yield Piece(name, size, partial(list, [LeftOut(name, "empty")]))
    elif path.suffix in COMPRESSED or size <= UNIT_BYTES:
        yield Piece(name, size, partial(json_lines, name, path, text_field))
    else:
        for first_line, start, end in _cuts(path):
            label = name if start == 0 else f"{name}:{first_line}"
            yield Piece(label, end - start, partial(json_lines, name, path, text_field, first_line, start, end))


def json_lines(
    name: str, path: Path, text_field: str, first_line: int = 1, start: int = 0, end: int | None = None
) -> Iterator[Document | LeftOut]:
    """The texts of a file's lines from byte `start`, which is in line `first_line`, to byte `end`.

    Raises:
      RequestError: As `of_records`.
    """
    return of_records(name, path, text_field, _rows(name, path, first_line, start, end), begins=start == 0)


def of_records(
    name: str, path: Path | str, text_field: str, rows: Iterable[Row], *, begins: bool
) -> Iterator[Document | LeftOut]:
    """A document a record, named by its `id` if it has one, else by its number.

    Args:
      name: Of what the records are in.
      path: Where it lies, for an error.
      text_field: Of the text. `a.b` is the field `b` of `a`. The strings of a list are paragraphs.
      rows: The records.
      begins: Whether these are the first of a file.

    Raises:
      RequestError: A file begins with records of which not one has a text there.
    """
    problem: tuple[int, str] | None = None
    has_fields = False
    read = False
    for number, record in rows:
        if isinstance(record, LeftOut):
            found: Document | LeftOut = record
        else:
            key = record.get("id")
            label = f"{name}#{key}" if isinstance(key, str | int) and key != "" else f"{name}:{number}"
            value = _field(record, text_field)
            strings = _strings(value)
            if strings is None:
                what = "is not there" if value is None else "is no text"
                found = LeftOut(label, f"the field {text_field} {what}")
            else:
                found = checked(label, PARAGRAPHS.join(strings))
        read = read or isinstance(found, Document)
        if isinstance(found, LeftOut) and problem is None:
            has = f"; its fields: {', '.join(map(str, record))}" if isinstance(record, dict) else ""
            problem = number, found.reason + has
            has_fields = isinstance(record, dict)
        yield found
    if begins and not read and problem is not None:
        raise RequestError(
            f"gives no text at all; record {problem[0]}: {problem[1]}",
            key="text_field" if has_fields else "path",
            value=text_field if has_fields else str(path),
            where=f"{path}:{problem[0]}",
            instead="the name of a field with text, and a file of one record a line",
        )


def _rows(name: str, path: Path, first_line: int, start: int, end: int | None) -> Iterator[Row]:
    number = first_line - 1
    try:
        with opened(path) as stream:
            if start:  # a compressed file has one piece
                stream.seek(start)
            for number, line in enumerate(stream, first_line):
                if line.strip():
                    yield number, _parsed(f"{name}:{number}", line)
                start += len(line)
                if end is not None and start >= end:
                    return
    except DAMAGED:
        yield number + 1, LeftOut(f"{name}:{number + 1}", damage(path))
    except OSError:
        yield number + 1, LeftOut(f"{name}:{number + 1}", UNREADABLE)


def _parsed(label: str, line: bytes) -> dict[str, Any] | LeftOut:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return LeftOut(label, NOT_UTF8)
    except (ValueError, RecursionError):
        return LeftOut(label, NOT_JSON)
    return record if isinstance(record, dict) else LeftOut(label, NOT_JSON)


def _cuts(path: Path) -> Iterator[tuple[int, int, int]]:
    """Pieces of a file that end with a line, as number of the first line, first byte and end."""
    line, start = 1, 0
    n_lines = position = 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            cut = -1
            if position + len(block) - start >= UNIT_BYTES:
                cut = block.rfind(b"\n")
            if cut >= 0:
                n_lines += block.count(b"\n", 0, cut + 1)
                yield line, start, position + cut + 1
                line, start = line + n_lines, position + cut + 1
                n_lines = block.count(b"\n", cut + 1)
            else:
                n_lines += block.count(b"\n")
            position += len(block)
    if start < position:
        yield line, start, position


def _field(record: dict[str, Any], path: str) -> Any:
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _strings(value: Any) -> list[str] | None:
    """The strings of a value that is one, or a list of such values, at any depth."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return None
    parts = [_strings(part) for part in value]
    return None if None in parts else [string for part in parts for string in part or ()]
