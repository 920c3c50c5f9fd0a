"""Values of a JSON object from outside, with messages that name key, value and file."""

import json
import sys
from typing import Any

from olmo_hydra.config.errors import RequestError

LARGEST = 2**31 - 1  # of a size or a count


class Values:
    """A JSON object that claims to describe a model.

    Args:
      content: The object.
      where: The file it stands in.
      prefix: The key it stands under, with a dot, if it is not the whole file.
    """

    def __init__(self, content: dict[str, Any], where: str, prefix: str = ""):
        self.content, self.where, self.prefix = content, where, prefix

    def get(self, key: str) -> Any:
        """The value, or None where it is absent or null."""
        return self.content.get(key)

    def only(self, key: str, value: Any) -> None:
        """Raises RequestError unless the value is `value`."""
        if self.get(key) != value or isinstance(self.get(key), bool) is not isinstance(value, bool):
            written = json.dumps(value).strip('"')
            raise self.wrong(key, f"is not {written}, and our model can be nothing else")

    def whole(self, key: str) -> int:
        """A positive whole number up to `LARGEST`. Raises RequestError where there is none."""
        value = self.get(key)
        if type(value) is not int or value < 1:
            raise self.wrong(key, "is no positive whole number")
        if value > LARGEST:
            raise self.wrong(key, f"is larger than {LARGEST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number. Raises RequestError where there is none and no default."""
        value: Any = default if self.get(key) is None else self.get(key)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self.wrong(key, "is no positive number")
        return float(value)

    def within(self, key: str) -> "Values":
        """The object under a key. Raises RequestError where it is something else."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "is no object")
        return Values(value, self.where, f"{self.prefix}{key}.")

    def wrong(self, key: str, problem: str) -> RequestError:
        """The error of one key; for the caller to raise."""
        if key not in self.content:
            return RequestError("is missing", key=self.prefix + key, where=self.where)
        return RequestError(problem, key=self.prefix + key, value=self.get(key), where=self.where)
