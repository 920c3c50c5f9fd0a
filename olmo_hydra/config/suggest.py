"""Did-you-mean: the nearest key or option to a misspelt one."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.root import Config


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like `word`, if any does."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def choices(words: Iterable[str], width: int = 240) -> str:
    """A comma-separated list, cut at `width` characters."""
    text = ", ".join(words)
    return text if len(text) <= width else text[: width - 4].rsplit(", ", 1)[0] + ", ..."


def unknown_key(key: str, schema: Any, where: str | None = None) -> RequestError:
    """The error for a key that `schema`, the type of its parent node, does not have."""
    parent, _, leaf = key.rpartition(".")
    known = [field.name for field in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else []
    if not parent:
        known += ["experiment", "sweep"]
    close = nearest(leaf, known)
    homes = _homes(leaf) if close is None and not parent else []
    if key in ("experiment", "sweep"):
        return RequestError(
            "its file must begin with the line `# @package _global_` and hold keys of the run", key=key, where=where
        )
    if close is not None:
        instead = f"{parent}.{close}".lstrip(".")
    elif homes:
        instead = " or ".join(homes)
    elif parent in ("data.domains", "data.sources"):  # entries of a schema, which a dotted key cannot add
        instead = f"'+{parent}={{{leaf}: {{key: value}}}}': it is a new entry"
    elif not known:
        instead = f"+{key}=VALUE: it is a new key"
    else:
        instead = f"one of the keys of {parent or 'the run'}: {choices(known)}"
    return RequestError("there is no such key", key=key, where=where, instead=instead)


def _homes(leaf: str, schema: Any = Config, prefix: str = "") -> list[str]:
    """Full keys whose last part is `leaf`: for a group prefix that was left out."""
    found = []
    for field in dataclasses.fields(schema):
        if field.name == leaf:
            found.append(prefix + leaf)
        if dataclasses.is_dataclass(field.type):
            found += _homes(leaf, field.type, f"{prefix}{field.name}.")
    return found
