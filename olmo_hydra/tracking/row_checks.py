"""What a row of each jsonl file of a run has to hold: all that its readers take for granted."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from olmo_hydra.tracking.trace import LISTED

Row = dict[str, Any]
Checks = Mapping[str, Callable[[Any], bool]]

LOOP = ("updates", "data", "eval", "save")
BEFORE = ("import", "open", "restore")
KEYS = (*BEFORE, "compile", *LOOP, "ending")  # of a row of time, in seconds since its start began
TRACE = re.compile(r"profile/plugins/profile/\w+/\w[\w.-]*\.trace\.json\.gz")
MOST = 1e12  # seconds, steps or chips: more is damage


def what_is_wrong(kind: str, row: Row) -> str | None:
    """What is wrong with a row of the file `kind`.jsonl (`has no step`); None if nothing is."""
    check = _WRONG.get(kind)
    return None if check is None else check(row)


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


def _wrong_time(row: Row) -> str | None:
    return _lacking(row, _TIME)


def _wrong_event(row: Row) -> str | None:
    event = row.get("event")
    if not isinstance(event, str):
        return "has no event"
    kind = "stopped" if event == "failed" and "first" in row else event
    where_there = {key: check for key, check in _EVENT_WHERE_THERE.items() if key in row}
    return _lacking(row, {"time": _is_time, **where_there, **_EVENTS.get(kind, {})})


def _lacking(row: Row, checks: Checks) -> str | None:
    for key, is_right in checks.items():
        if key not in row:
            return f"has no {key}"
        if not is_right(row[key]):
            return f"has a value as {key} that no run writes"
    return None


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, dict) and all(isinstance(sample.get(key), str) for key in ("prompt", "text"))


def _has_numbers(domain: Any) -> bool:
    return isinstance(domain, dict) and all(map(_is_number, domain.values()))


def _is_origin(init: Any) -> bool:
    return isinstance(init, dict) and _lacking(init, _ORIGIN) is None


def _is_time(value: Any) -> bool:
    try:
        moment = datetime.fromisoformat(value)
        moment.astimezone(UTC).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return moment.tzinfo is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_trace(value: Any) -> bool:
    """A path that a page may link to."""
    return isinstance(value, str) and TRACE.fullmatch(value) is not None


def _are_operations(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > LISTED + 1:
        return False
    return all(isinstance(one, dict) and not _lacking(one, _OPERATION) for one in value)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST


_TIME: Checks = {"time": _is_time, **dict.fromkeys(("start", "chips", "step", *KEYS), _is_amount)}
_ORIGIN: Checks = {"from": _is_text, "load": _is_text, "differs": _are_texts}
_OPERATION: Checks = {"name": _is_text, "program": _is_text, "seconds": _is_amount, "times": _is_count}
_EVENT_WHERE_THERE: Checks = {
    "step": _is_count,
    "init": _is_origin,
    **dict.fromkeys(("seconds", *KEYS), _is_amount),  # of the first update
}
_EVENTS: dict[str, Checks] = {
    "resumed": {"step": _is_count},
    "finished": {"step": _is_count},
    "checkpoint": {"step": _is_count},
    "first_update": {"step": _is_count},
    "profiled": {"first": _is_count, "last": _is_count, "trace": _is_trace, "operations": _are_operations},
    "profile_failed": {"first": _is_count, "last": _is_count, "error": _is_text},
    "imported": {"parameters": _is_count},
    "data_repeated": {"step": _is_count, "repeated": _is_count, "epoch": _is_count},
    "data_changed": {
        "step": _is_count,
        "differences": _are_texts,
        "heldout": _are_texts,
        "begun": _is_count_or_none,
        "ledger_begins_anew": _is_bool,
    },
    "skipped": {
        "step": _is_count,
        **dict.fromkeys(("loss", "grad_norm", "lr"), _is_number),
        "why": _is_text,
        "instances": _are_counts,
    },
    "stopped": {  # a failure by skipped updates
        "error": _is_text,
        "first": _is_count,
        "last": _is_count,
        "checkpoint": _is_count_or_none,
        "why": _is_text,
    },
}
_WRONG: dict[str, Callable[[Row], str | None]] = {
    "metrics": _wrong_numbers,
    "throughput": _wrong_numbers,
    "evals": _wrong_evaluation,
    "time": _wrong_time,
    "events": _wrong_event,
}
