"""JSON and YAML of a run directory, read as data: whoever wrote it, it is plain values of bounded size, or refused."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.files import MAX_DOCUMENT, MAX_TEXT, read

MAX_WEIGHT = 1 << 32  # bytes of a file of rows, or of a document; an object in it counts for `OBJECT` more
OBJECT = 256  # bytes that an empty dict or list takes in memory, and its place in another
MAX_DIGITS = 18  # of a whole number, so that it is one of 64 bits


def parse_json(text: bytes) -> Any:
    """Plain values. Raises ValueError for what is no JSON in UTF-8, nested too deep, or a number that is not finite or
    larger than 64 bits.
    """
    try:
        return _DECODER.decode(text.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def load_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is none.

    Raises:
      RequestError: It is a link or the like, too large, or no JSON.
    """
    content = read(path, MAX_DOCUMENT)
    if content is None:
        return None
    if weight(content) > MAX_WEIGHT:
        raise RequestError("has too many objects", where=str(path), instead="the file that the run wrote")
    try:
        return parse_json(content)
    except ValueError as error:
        raise RequestError(f"is not valid JSON: {error}", where=str(path), instead="a copy of it") from error


def load_yaml(path: Path) -> Any:
    """The content of a YAML file: plain values, whatever its tags say. None where there is none.

    Raises:
      RequestError: It is a link or the like, too large, no YAML, or has tags or aliases, which a frozen config has not.
    """
    content = read(path, MAX_TEXT)
    if content is None:
        return None
    try:
        return yaml.load(content.decode(), _PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise RequestError(f"the file is not valid YAML: {error.problem}", where=f"{path}{place}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"is not text in UTF-8: {error}", where=str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise RequestError(f"the file is not valid YAML: {problem}", where=str(path)) from error


def weight(content: bytes) -> int:
    """Bytes, with those that its objects take in memory."""
    return len(content) + OBJECT * (content.count(b"{") + content.count(b"["))


@contextmanager
def as_written(path: Path, what: str) -> Iterator[None]:
    """Errors of values that are not what a run writes, as one that names the place.

    Args:
      path: Of the file or the run directory.
      what: What was to be made of them (`a report`).

    Raises:
      RequestError: In place of such an error.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        problem = f"{what} cannot be made of it: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise RequestError(problem, where=str(path), instead="a run that this version wrote") from error


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise ValueError("a number is too large")
    return int(digits)


def _finite_number(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError("a number is too large")
    return number


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_float=_finite_number, parse_constant=_no_number)


class _PlainLoader(yaml.SafeLoader):
    """Without aliases: a few lines of them stand for more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "it has an alias, and a frozen config has none", mark)
        return super().compose_node(parent, index)
