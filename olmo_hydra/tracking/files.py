"""Writing a whole file at once: a reader, or a crash, sees the old content or the new, never a part."""

import os
from pathlib import Path

from olmo_hydra.config.errors import RequestError


def replace(path: Path, content: bytes) -> None:
    """Writes `content` beside `path`, forces it to disk and renames it over `path`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Makes a folder and its parents. Raises RequestError, naming run.root, where that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"the folder {path} cannot be written: {error.strerror}",
            key="run.root",
            instead="run.root=FOLDER, one that you can write to",
        ) from error
