"""Which updates of a run read which data: a start may go on with other data than the one before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.documents import load_json
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]
Digest = Literal["fingerprint", "heldout"]  # of what was trained on, or evaluated


@dataclass(frozen=True)
class Stretch:
    """Updates `first` to `last` (None: and those to come), which had one `digest` of data."""

    first: int
    last: int | None
    digest: str | None

    def holds(self, step: int) -> bool:
        """Whether update `step` is one of them."""
        return self.first <= step and (self.last is None or step <= self.last)

    def __str__(self) -> str:
        return f"{self.first:,} on" if self.last is None else f"{self.first:,} to {self.last:,}"


def starts_of(run_dir: RunDir) -> list[Row]:
    """What `provenance.json` says of each start, oldest first; none if it is not there.

    Raises:
      RequestError: The file is damaged, or of an earlier version of this program.
    """
    content = load_json(run_dir.provenance)
    if content is None:
        return []
    starts: list[Row] | None = content.get("starts") if isinstance(content, dict) else None
    if not isinstance(starts, list) or not all(map(_is_start, starts)):
        raise RequestError(
            "cannot be read as the starts of a run: it has one without its step and the fingerprint of its data",
            where=str(run_dir.provenance),
            instead="a copy of the file, or a run of this version",
        )
    return starts


def _is_start(start: Any) -> bool:
    if not isinstance(start, dict) or not isinstance(start.get("data"), dict):
        return False
    return type(start.get("step")) is int and "fingerprint" in start["data"]


def stretches(starts: Sequence[Row], of: Digest) -> list[Stretch]:
    """The updates of a run by the data that made them. A start makes anew whatever was done past its first step."""
    valid: list[Row] = []
    for start in starts:
        valid = [*(one for one in valid if one["step"] < start["step"]), start]
    found: list[Stretch] = []
    for start in valid:
        first, digest = start["step"] + 1, start["data"].get(of)
        if found and found[-1].digest == digest:
            continue
        if found:
            found[-1] = replace(found[-1], last=first - 1)
        found.append(Stretch(first, None, digest))
    return found


def changes(starts: Sequence[Row], events: Sequence[Row], of: Digest) -> list[Row]:
    """The events `data_changed` that still count, oldest first: each begins a stretch, after update `step`."""
    told = {event["step"]: event for event in events if event["event"] == "data_changed"}
    return [told[one.first - 1] for one in stretches(starts, of)[1:] if one.first - 1 in told]


def of_one_text(evals: Sequence[Row], starts: Sequence[Row]) -> list[Row]:
    """The rows of evals.jsonl without those of held-out text that was another then: numbers that compare."""
    texts = stretches(starts, "heldout")
    first = texts[-1].first if len(texts) > 1 else 0
    return [row for row in evals if row["step"] >= first]
