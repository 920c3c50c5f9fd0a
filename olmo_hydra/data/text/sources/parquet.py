"""Parquet files, a document a row; read by pyarrow, which is imported when one comes along."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices
from olmo_hydra.data.text.sources.records import Row, of_records
from olmo_hydra.data.text.sources.registry import NOT_UTF8, Document, LeftOut, Piece

BATCH_ROWS = 1024


def row_groups(name: str, path: Path, size: int, text_field: str) -> Iterator[Piece]:
    """The row groups of a file; their sizes are those of the text, not of the file.

    Raises:
      RequestError: The file's index cannot be read, it has no such column, or pyarrow is not installed.
    """
    file = _opened(path)
    columns = [column for column in (text_field, "id") if column in file.schema_arrow.names]
    if text_field not in columns:
        raise RequestError(
            "is no column of the file",
            key="text_field",
            value=text_field,
            where=str(path),
            instead=choices(file.schema_arrow.names),
        )
    first = 1
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        places = [i for i in range(group.num_columns) if group.column(i).path_in_schema.split(".")[0] == text_field]
        n_bytes = sum(group.column(i).total_uncompressed_size for i in places)
        label = name if index == 0 else f"{name}:{first}"
        yield Piece(label, n_bytes, partial(row_group, name, path, text_field, columns, index, first))
        first += group.num_rows


def row_group(
    name: str, path: Path, text_field: str, columns: list[str], index: int, first: int
) -> Iterator[Document | LeftOut]:
    """The texts of one row group, whose first row has the number `first`."""
    return of_records(name, path, text_field, _rows(name, path, columns, index, first), begins=index == 0)


def _rows(name: str, path: Path, columns: list[str], index: int, first: int) -> Iterator[Row]:
    import pyarrow

    number = first
    try:
        for batch in _opened(path).iter_batches(BATCH_ROWS, row_groups=[index], columns=columns):
            for cells in zip(*batch.columns, strict=True):
                try:
                    row: dict[str, Any] | LeftOut = dict(
                        zip(batch.schema.names, [cell.as_py() for cell in cells], strict=True)
                    )
                except UnicodeDecodeError:
                    row = LeftOut(f"{name}:{number}", NOT_UTF8)
                yield number, row
                number += 1
    except (OSError, pyarrow.ArrowException):
        yield number, LeftOut(f"{name}:{number}", "damaged")


def _opened(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise RequestError(
            "is a Parquet file, and pyarrow is not installed",
            key="path",
            value=path,
            instead="pip install 'olmo-hydra[text]'",
        ) from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise RequestError(
            f"cannot be read as Parquet ({str(error).splitlines()[0]})",
            key="path",
            value=path,
            instead="a file that is whole",
        ) from error
