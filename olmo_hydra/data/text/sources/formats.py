"""Formats of files by name, and which ending tells which.

To add one, write a function from a file to the `Piece`s that can be read alone, and give it a line in `FORMATS`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from olmo_hydra.data.text.sources.api import api_file
from olmo_hydra.data.text.sources.man import man_text
from olmo_hydra.data.text.sources.markup import html_text
from olmo_hydra.data.text.sources.parquet import row_groups
from olmo_hydra.data.text.sources.plain import converted_file, text_file
from olmo_hydra.data.text.sources.pod import pod_text
from olmo_hydra.data.text.sources.records import json_lines_pieces
from olmo_hydra.data.text.sources.registry import Document, LeftOut, Piece

# A file's name inside its domain, its path, its size in bytes and the field of a record that has the text.
Pieces = Callable[[str, Path, int, str], Iterable[Piece]]


def one(read: Callable[[str, Path], Iterable[Document | LeftOut]]) -> Pieces:
    """Files that are read whole."""
    return lambda name, path, size, text_field: [Piece(name, size, partial(read, name, path))]


FORMATS: dict[str, Pieces] = {
    "text": one(text_file),
    "html": one(partial(converted_file, html_text)),
    "pod": one(partial(converted_file, pod_text)),
    "man": one(partial(converted_file, man_text)),
    "api": one(api_file),
    "jsonl": json_lines_pieces,
    "parquet": row_groups,
}
ENDINGS = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst", ".tex"), "text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pod": "pod",
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".parquet": "parquet",
}
