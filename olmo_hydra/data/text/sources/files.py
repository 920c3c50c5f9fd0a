"""Text in files of the machine, cut into units of even size."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources.registry import NOT_UTF8, UNREADABLE, Document, LeftOut, Unit, source

UNIT_BYTES = 8 << 20  # a few seconds of work for one process, and enough units to keep many busy

Item = tuple[str, Path]  # the name of a document or file inside its domain, and where it lies
Read = Callable[[str, Path], Iterable[Document | LeftOut]]


@source("files")
def files(cfg: DomainConfig) -> list[Unit]:
    """Text files under `path` that match `pattern`, a document a file."""
    if cfg.path is None:
        raise RequestError("the source `files` needs a folder", key="path", value=None, instead="path: /folder/of/text")
    root = Path(cfg.path).expanduser()
    if not root.is_dir():
        raise RequestError("is no folder", key="path", value=cfg.path, instead="the path of a folder with text files")
    try:
        paths = [path for path in root.glob(cfg.pattern) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise RequestError(
            f"is no pattern of files below a folder ({error})", key="pattern", value=cfg.pattern, instead="'**/*.txt'"
        ) from error
    return grouped([(path.relative_to(root).as_posix(), path) for path in paths], text_file)


def grouped(items: Iterable[Item], read: Read) -> list[Unit]:
    """Units of consecutive files in the order of their names, of `UNIT_BYTES` or one file each."""
    groups: list[list[Item]] = []
    size = UNIT_BYTES
    for name, path in sorted(items):
        n_bytes = path.stat().st_size if path.is_file() else 0  # a listed file that is missing is for `read` to tell
        if size + n_bytes > UNIT_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, path))
        size += n_bytes
    return [Unit(group[0][0], partial(read_all, read, group)) for group in groups]


def read_all(read: Read, items: list[Item]) -> Iterator[Document | LeftOut]:
    """What each of some files gives, one after the other."""
    for name, path in items:
        yield from read(name, path)


def text_file(name: str, path: Path) -> Iterator[Document | LeftOut]:
    """A UTF-8 file as one document."""
    try:
        yield Document(name, path.read_bytes().decode())
    except UnicodeDecodeError:
        yield LeftOut(name, NOT_UTF8)
    except OSError:
        yield LeftOut(name, UNREADABLE)
