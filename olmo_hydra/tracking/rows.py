"""The rows of a run's jsonl files: read in order and in bounds, each checked for what its file holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.documents import MAX_WEIGHT, parse_json, weight
from olmo_hydra.tracking.files import open_to_read

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
                raise _damaged(path, torn, "is not a JSON object")
            if len(line) > MAX_ROW:
                raise _damaged(path, number, f"has more than {MAX_ROW:,} bytes")
            if (total := total + weight(line)) > MAX_WEIGHT:
                raise _damaged(path, number, f"comes after {MAX_WEIGHT:,} bytes of rows")
            if not line.endswith(b"\n"):
                break
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                torn = number
            elif problem := _WRONG.get(path.stem, _nothing)(row):
                raise _damaged(path, number, problem)
            else:
                whole.append((line, row))
    return whole


def _damaged(path: Path, number: int, problem: str) -> RequestError:
    return RequestError(
        f"line {number} {problem}: the file is damaged",
        where=f"{path}:{number}",
        instead="a copy of the file, or the file without that line",
    )


def _wrong_numbers(row: Row) -> str | None:
    if not _is_count(row.get("step")):
        return "has no step"
    wrong = next((key for key, value in row.items() if not _is_number(value)), None)
    return None if wrong is None else f"has no number as {wrong}"


def _wrong_evaluation(row: Row) -> str | None:
    if not _is_count(row.get("step")) or not isinstance(row.get("suite"), str):
        return "has no step or no suite"
    if row["suite"] == "samples":
        samples = row.get("samples")
        return None if isinstance(samples, list) and all(map(_is_sample, samples)) else "has no samples"
    domains = row.get("domains")
    if not isinstance(domains, dict) or not all(map(_has_numbers, domains.values())):
        return "has no numbers of its domains"
    return None if _is_number(row.get("bits_per_byte")) else "has no number as bits_per_byte"


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, dict) and all(isinstance(sample.get(key), str) for key in ("prompt", "text"))


def _has_numbers(domain: Any) -> bool:
    return isinstance(domain, dict) and all(map(_is_number, domain.values()))


def _wrong_event(row: Row) -> str | None:
    if not isinstance(row.get("event"), str):
        return "has no event"
    if row["event"] == "data_changed" and not all(map(_are_texts, map(row.get, ("differences", "heldout")))):
        return "has no differences"
    return None if _is_count(row.get("step", 0)) else "has no step"


def _nothing(row: Row) -> str | None:
    return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


_WRONG: dict[str, Callable[[Row], str | None]] = {
    "metrics": _wrong_numbers,
    "throughput": _wrong_numbers,
    "evals": _wrong_evaluation,
    "events": _wrong_event,
}
