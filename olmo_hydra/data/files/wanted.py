"""Token files by their paths: patterns expanded below a root, which is a folder or a URL, and all of them opened."""

import glob
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files import remote
from olmo_hydra.data.files.places import Place
from olmo_hydra.data.files.token_file import TokenFile, open_file
from olmo_hydra.data.report import Report

THREADS = 32  # that ask for the sizes of remote files


class Wanted(NamedTuple):
    """A token file by its path from the root, with the path of its label mask."""

    label: str
    path: str
    mask: str | None = None


def expand(root: str | None, pattern: str, key: str, copies: Path | None) -> list[str]:
    """Paths from the root that a pattern matches, sorted; one without wildcards is a path.

    Args:
      root: A folder or URL; None: the current folder.
      pattern: As for `glob`, with `**` for folders of any depth. A whole path or URL does not start from the root.
      key: Of the config that it comes from, for errors.
      copies: Folder of copies of remote files, where their names are kept for a start without a network; or None.

    Raises:
      RequestError: It matches no file, or the server cannot be reached.
    """
    if not glob.has_magic(pattern):
        return [pattern]
    if remote.is_url(pattern):
        base = pattern[: next(i for i, character in enumerate(pattern) if glob.has_magic(character))].rpartition("/")[0]
        found = [f"{base}/{path}" for path in remote.glob(base, pattern[len(base) + 1 :], copies)]
    elif root is not None and remote.is_url(root):
        found = remote.glob(root, pattern, copies)
    else:
        folder = _local(root or ".")
        matches = glob.glob(pattern, root_dir=folder, recursive=True)
        found = sorted(path for path in matches if (folder / path).is_file())
    if not found:
        where = root or "the current folder"
        raise RequestError("matches no file", key=key, value=pattern, instead=f"a pattern of files below {where}")
    return found


def open_all(
    root: str | None, wanted: Sequence[Wanted], dtype: np.dtype, copies: Path | None, report: Report
) -> list[TokenFile]:
    """Token files, opened in the order given; one that is wanted twice is there twice.

    They are called by their paths from the root, and those that are not below it by their last part, with a number
    where that is taken: a copy of the data on another machine has the same names.

    Args:
      root: A folder or URL that their paths start from; None: the current folder.
      wanted: The files.
      dtype: Of their tokens.
      copies: Folder for copies of remote files; None: they are read where they are.
      report: Receives a line if there are remote files, which take a while.

    Raises:
      RequestError: As `open_file`.
    """

    names = _names(root, wanted)

    def open_one(file: Wanted) -> TokenFile:
        mask = None if file.mask is None else _place(_joined(root, file.mask), copies)
        place = _place(_joined(root, file.path), copies)
        return open_file(place, dtype, label=file.label, name=names[file.path], mask=mask)

    different = list(dict.fromkeys(wanted))
    if any(remote.is_url(_joined(root, file.path)) for file in different):
        report(f"data: asking for the sizes of {len(different):,} remote files")
        with ThreadPoolExecutor(THREADS) as threads:
            opened = dict(zip(different, threads.map(open_one, different), strict=True))
    else:
        opened = {file: open_one(file) for file in different}
    return [opened[file] for file in wanted]


def _names(root: str | None, wanted: Sequence[Wanted]) -> dict[str, str]:
    """What to call each path."""
    names: dict[str, str] = {}
    places: dict[str, str] = {}
    for path in dict.fromkeys(file.path for file in wanted):
        place = _joined(root, path)
        place = place if remote.is_url(place) else os.path.abspath(_local(place))
        name = below = _below(root, place)
        number = 1
        while places.setdefault(name, place) != place:
            number += 1
            name = f"{below} ({number})"
        names[path] = name
    return names


def _below(root: str | None, place: str) -> str:
    """A file by its path from the root, or the last part of it where it is not below."""
    if remote.is_url(place):
        base = None if root is None else f"{root.rstrip('/')}/"
        return place[len(base) :] if base and place.startswith(base) else place.rpartition("/")[2]
    found = Path(os.path.relpath(place, _local(root or ".")))
    return found.name if found.parts[0] == ".." else str(found)


def _place(path: str, copies: Path | None) -> Place:
    return remote.find(path, copies) if remote.is_url(path) else _local(path)


def _joined(root: str | None, path: str) -> str:
    if root is None or remote.is_url(path):
        return path
    return f"{root.rstrip('/')}/{path}" if remote.is_url(root) else str(_local(root) / path)


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://")).expanduser()
