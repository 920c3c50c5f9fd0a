"""Data sets of the Hugging Face library, a document a row, if that library is installed."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices
from olmo_hydra.data.text.sources.files import grouped
from olmo_hydra.data.text.sources.records import Row, of_records
from olmo_hydra.data.text.sources.registry import UNIT_BYTES, Document, LeftOut, Origin, Piece, Unit, source

REVISION = re.compile(r"hf://datasets/[^@ ]+@([^/ ]+)")  # in the addresses of what the library has fetched
ON_DISK = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves


@source("huggingface")
def huggingface(cfg: DomainConfig) -> list[Unit]:
    """`path`: a folder that `save_to_disk` wrote, or the name of a data set, and `:SPLIT` if it has several splits."""
    if cfg.path is None:
        raise RequestError(
            "the source `huggingface` needs a data set", key="path", value=None, instead="path: NAME:SPLIT"
        )
    table = _table(cfg.path)
    if cfg.text_field.split(".")[0] not in table.column_names:
        raise RequestError(
            "is no column of the data set",
            key="text_field",
            value=cfg.text_field,
            where=cfg.path,
            instead=choices(table.column_names),
        )
    n_rows = max(1, int(UNIT_BYTES * len(table) / max(1, table.data.nbytes)))
    return grouped(
        [
            Piece(f"{start + 1:012}", UNIT_BYTES, partial(_texts, cfg.path, cfg.text_field, start, start + n_rows))
            for start in range(0, len(table), n_rows)
        ],
        Origin("huggingface", cfg.path, _version(table), ""),
    )


def _version(table: Any) -> str:
    """The revision that a data set was fetched at, if it was fetched, and the library's fingerprint of it."""
    fetched = REVISION.findall(" ".join(table.info.download_checksums or {}))
    return " ".join([*sorted(set(fetched)), table._fingerprint])


def _texts(path: str, text_field: str, start: int, end: int) -> Iterator[Document | LeftOut]:
    table = _table(path)
    columns = [column for column in {text_field.split(".")[0], "id"} if column in table.column_names]
    rows = table.select_columns(columns).select(range(start, min(end, len(table))))
    numbered: Iterator[Row] = ((number, dict(row)) for number, row in enumerate(rows, start + 1))
    return of_records(Path(path.partition(":")[0]).name, path, text_field, numbered, begins=start == 0)


def _table(path: str) -> Any:
    """The data set of a path, one split of it."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise RequestError(
            "needs the library `datasets`", key="path", value=path, instead="pip install 'olmo-hydra[text]'"
        ) from error
    name, _, split = path.partition(":")
    try:
        if any((Path(name).expanduser() / file).is_file() for file in ON_DISK):
            found = datasets.load_from_disk(str(Path(name).expanduser()))
            if split and isinstance(found, datasets.DatasetDict):
                found = found[split]
        else:
            found = datasets.load_dataset(name, split=split or None)
    except (OSError, KeyError, ValueError) as error:  # not there, no such split, or no network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(
            f"cannot be opened as a data set ({reason})", key="path", value=path, instead="path: FOLDER or NAME:SPLIT"
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if len(found) > 1:
            raise RequestError(
                "has several splits", key="path", value=path, instead=choices([f"{name}:{s}" for s in found])
            )
        found = next(iter(found.values()))
    return found
