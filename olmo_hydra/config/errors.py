"""The one exception for a request that cannot be served: it ends the process with status 2, without a traceback."""

from typing import Any

_UNSET = object()


class RequestError(Exception):
    """A wrong request: what is wrong, where it stands, and what to write instead.

    Args:
      problem: What is wrong, in one sentence without the key (`must be positive`).
      key: Full config key the problem belongs to (`model.head_dim`), if it belongs to one.
      value: The offending value; shown beside the key.
      instead: What to write instead: an override, a command or a rule.
      where: File or command the value came from. Filled in by `config.explain.explain` when it is not given.
    """

    def __init__(
        self,
        problem: str,
        *,
        key: str | None = None,
        value: Any = _UNSET,
        instead: str | None = None,
        where: str | None = None,
    ):
        super().__init__(problem)
        self.problem = problem
        self.key = key
        self.value = value
        self.has_value = value is not _UNSET
        self.instead = instead
        self.where = where

    def __str__(self) -> str:
        subject = ""
        if self.key is not None:
            subject = f"{self.key}={show(self.value)}: " if self.has_value else f"{self.key}: "
        text = f"error: {printable(subject)}{self.problem}"
        if self.where:
            text += f"\n  where:   {printable(self.where)}"
        if self.instead:
            text += f"\n  instead: {self.instead}"
        return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """A text on one line, its control characters escaped: it may come from anywhere, and goes to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(value: Any) -> str:
    """A config value as one would type it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(show(item) for item in value) + "]"
    text = str(getattr(value, "value", value))
    return text if len(text) <= 120 else text[:117] + "..."


def require(condition: bool, problem: str, *, key: str, value: Any, instead: str | None = None) -> None:
    """Raises `RequestError` unless `condition` holds."""
    if not condition:
        raise RequestError(problem, key=key, value=value, instead=instead)


class RunFailed(Exception):
    """The work failed for a reason that a traceback would not explain (skipped updates in a row). Exit status 1.

    Args:
      message: What failed, and what to do.
      fields: What the event `failed` says beside it.
    """

    def __init__(self, message: str, **fields: Any):
        super().__init__(message)
        self.fields = fields
