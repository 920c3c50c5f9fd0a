"""Folders that appear whole or not at all."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.files import open_lock

LOCK = ".olmo_hydra_lock"


@contextmanager
def whole_folder(folder: Path, size: int) -> Iterator[Path]:
    """Yields `<folder>.partial` to be filled, which becomes `folder` when the block ends without an error.

    After an error it is removed. What a killed process left is removed by the next that wants the same folder.

    Args:
      folder: Must not exist, or be empty.
      size: Bytes that will be written, about.

    Raises:
      RequestError: `folder` is a link, its name is no UTF-8, it holds something, another process is writing it,
        or it cannot be written; or a file that the block wanted to read cannot be read.
    """
    folder = folder.absolute()
    refuse_no_utf8(str(folder))
    try:
        if folder.is_symlink():
            raise RequestError("is a link", key=str(folder), instead="the folder it names, or one that does not exist")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            problem = "exists already and is not empty"
            raise RequestError(problem, key=str(folder), instead="a folder that does not exist")
        partial = folder.with_name(f"{folder.name}.partial")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(partial):
            try:
                if (free := shutil.disk_usage(partial).free) < size:
                    raise RequestError(f"{size:,} bytes are needed and {free:,} are free", where=str(folder.parent))
                with _sources_named(partial):
                    yield partial
                for path in partial.rglob("*"):
                    _sync(path)
                (partial / LOCK).unlink()
                partial.rename(folder)
                _sync(folder.parent)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise RequestError(f"the folder cannot be written: {error.strerror}", where=str(folder)) from error


def refuse_no_utf8(text: str) -> None:
    """Raises RequestError for a name that no record, message or JSON could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError("the name is no UTF-8", key=ascii(text), instead="another name") from None


@contextmanager
def _sources_named(partial: Path) -> Iterator[None]:
    """Errors of files outside of `partial`, where nothing is written, become those of reading them."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # of a copy, which names what it reads first
            raise
        if error.filename is None or Path(os.fsdecode(error.filename)).absolute().is_relative_to(partial):
            raise
        raise RequestError(f"cannot be read: {error.strerror}", where=os.fsdecode(error.filename)) from error


@contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """An empty folder that belongs to this process; the kernel lets go of it however the process ends."""
    # Empty without a lock: whoever made it was stopped between the two.
    stranger = not (partial / LOCK).exists() and (not partial.is_dir() or any(partial.iterdir()))
    if partial.is_symlink() or (partial.exists() and stranger):
        raise RequestError(f"{partial} is in the way", instead="another folder, or move it away")
    partial.mkdir(exist_ok=True)
    with open_lock(partial / LOCK) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError("another process is writing it", where=str(partial)) from None
        for path in partial.iterdir():
            if path.name != LOCK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
