"""The rows of a run's jsonl files: read in order and in bounds, each checked for what its file holds."""

from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.documents import MAX_WEIGHT, parse_json, weight
from olmo_hydra.tracking.files import open_to_read
from olmo_hydra.tracking.row_checks import what_is_wrong

Row = dict[str, Any]

MAX_ROW = 1 << 22  # bytes of a line


def whole_lines(path: Path) -> list[tuple[bytes, Row]]:
    """The lines of a jsonl file as bytes (newline included) beside their rows, without a torn last line.

    Torn is what a killed writer leaves: bytes after the last newline, or a last line that is not JSON (a file system
    may keep a length whose content never reached the disk).

    Raises:
      RequestError: A line before the last is not a JSON object, or any is no row of such a file; it is a link or the
        like, or too large. Names file and line.
    """
    file = open_to_read(path)
    if file is None:
        return []
    whole: list[tuple[bytes, Row]] = []
    total = torn = 0
    with file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_ROW + 1), b""), 1):
            if torn:
                raise damaged(path, torn, "is not a JSON object")
            if len(line) > MAX_ROW:
                raise damaged(path, number, f"has more than {MAX_ROW:,} bytes")
            if (total := total + weight(line)) > MAX_WEIGHT:
                raise damaged(path, number, f"comes after {MAX_WEIGHT:,} bytes of rows")
            if not line.endswith(b"\n"):
                break
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                torn = number
            elif problem := what_is_wrong(path.stem, row):
                raise damaged(path, number, problem)
            else:
                whole.append((line, row))
    return whole


def damaged(path: Path, number: int, problem: str) -> RequestError:
    """The error of a line of a jsonl file, the first being 1, that is not what a run writes."""
    without_it = "the file without that line"
    of_time = f"{without_it}; or remove the file: nothing else needs it, and the run's time is counted anew"
    return RequestError(
        f"line {number} {problem}: the file is damaged",
        where=f"{path}:{number}",
        instead=of_time if path.stem == "time" else f"a copy of the file, or {without_it}",
    )
