"""Descriptions of the interfaces of services, as botocore and Google's API client carry them in JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from olmo_hydra.data.text.sources.markup import html_text
from olmo_hydra.data.text.sources.plain import checked
from olmo_hydra.data.text.sources.records import NOT_JSON
from olmo_hydra.data.text.sources.registry import UNREADABLE, Document, LeftOut
from olmo_hydra.data.text.sources.streams import DAMAGED, damage, opened

TABLES = ("operations", "shapes", "methods", "schemas")  # whose entries are a document each
TEXTS = ("documentation", "description")
GROUPS = ("members", "properties", "parameters", "items", "member", "additionalProperties")  # no names of their own


def api_file(name: str, path: Path) -> Iterator[Document | LeftOut]:
    """A document for each operation, method and type of a service that has a description: its name, its text, and the
    name and text of each of its parts."""
    try:
        with opened(path) as stream:
            content = json.loads(stream.read())
    except DAMAGED:
        yield LeftOut(name, damage(path))
    except OSError:
        yield LeftOut(name, UNREADABLE)
    except (ValueError, RecursionError):
        yield LeftOut(name, NOT_JSON)
    else:
        for place, title, entry in _entries(content, ""):
            lines = list(_described(entry, ""))
            if lines:
                yield checked(f"{name}#{place}", "\n\n".join([title, *lines]))


def _entries(value: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key in TABLES and isinstance(inner, dict):
            yield from ((f"{place}{key}/{name}", name, entry) for name, entry in inner.items())
        else:
            yield from _entries(inner, f"{place}{key}/")


def _described(value: Any, name: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for key in TEXTS:
        if isinstance(value.get(key), str):
            text = html_text(value[key])
            if text:
                yield f"{name}: {text}" if name else text
    values, meanings = value.get("enum"), value.get("enumDescriptions")
    if isinstance(values, list) and isinstance(meanings, list):
        yield from (f"{choice}: {meaning}" for choice, meaning in zip(values, meanings, strict=False) if meaning)
    for key, inner in value.items():
        yield from _described(inner, name if key in GROUPS else key)
