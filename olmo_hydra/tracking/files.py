"""The doors to the files of a run directory, which may be a stranger's: none follows a link, opens a pipe or a device.

What a file may weigh is said here too, so that no directory takes more memory or time to read than a run's own could.
"""

import errno
import glob
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO

from olmo_hydra.config.errors import RequestError

MAX_TEXT = 1 << 20  # bytes of a file that people write: config.yaml, overrides.yaml, wandb/id
MAX_DOCUMENT = 1 << 28  # bytes of a JSON file: provenance.json has the diff of every start

LONGEST_REPLACEMENT = 24 * 3600  # seconds that a file may be written beside another before it is thought abandoned

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Tensorstore calls a full disk RESOURCE_EXHAUSTED, as a full memory, and is not always passed on as an OSError.
_SAID_TO_BE_FULL = re.compile("|".join(re.escape(os.strerror(number)) for number in _FULL))


def open_to_read(path: Path) -> BufferedReader | None:
    """A file opened for reading, or None where there is none.

    Raises:
      RequestError: It is a link, a pipe, a device or a folder, or it cannot be read.
    """
    try:
        return open(_regular(path, os.O_RDONLY), "rb")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", where=str(path)) from error


def read(path: Path, limit: int) -> bytes | None:
    """The content of a file of at most `limit` bytes, or None where there is none.

    Raises:
      RequestError: As `open_to_read`; or the file is larger.
    """
    file = open_to_read(path)
    if file is None:
        return None
    with file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise RequestError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(content) > limit:
        raise RequestError(f"has more than {limit:,} bytes", where=str(path), instead="the file that the run wrote")
    return content


def open_to_append(path: Path) -> FileIO:
    """A file opened unbuffered for writing at its end; made if there is none.

    Where the file has a second name (a copy by hard links, as of some backups), it first becomes one of its own.

    Raises:
      RequestError: It is a link, a pipe, a device or a folder, or it cannot be written.
    """
    with writing(path):
        descriptor = _regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        if os.fstat(descriptor).st_nlink > 1:
            with open(descriptor, "rb") as shared:
                _replace(path, shared)
            descriptor = _regular(path, os.O_RDWR | os.O_APPEND)
        return open(descriptor, "ab", buffering=0)


def open_lock(path: Path) -> FileIO:
    """A lock file opened for reading and writing, made if there is none. Raises RequestError as `open_to_append`.

    A second name is refused: who holds the lock by that name must not be overlooked.
    """
    with writing(path):
        descriptor = _regular(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise RequestError("has a second name (a hard link)", where=str(path), instead="the folder without it")
        return open(descriptor, "r+b", buffering=0)


def replace(path: Path, content: bytes) -> None:
    """Writes `content` beside `path`, forces it to disk and renames it over `path`.

    A reader, or a crash, sees the old content or the new. A link of that name is replaced, what it names not touched.

    Raises:
      RequestError: It cannot be written.
    """
    with writing(path):
        _replace(path, content)


def _replace(path: Path, content: bytes | BinaryIO) -> None:
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    for left in (beside, *_abandoned(path)):  # of a process that was killed, or a link that is to be followed
        with suppress(OSError):
            left.unlink()
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def _abandoned(path: Path) -> Iterator[Path]:
    """What processes that are gone have left beside a file that they were replacing.

    Of another host's processes only time tells, which share the folder.
    """
    for beside in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        host, _, number = beside.name.removeprefix(f".{path.name}.").rpartition(".")
        if number.isdecimal() and (_is_gone(int(number)) if host == socket.gethostname() else _is_old(beside)):
            yield beside


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # it lives, and is another user's
        return False
    return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > LONGEST_REPLACEMENT
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Forces to disk which names a folder holds: after a rename, the rename itself."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, key: str = "run.root") -> None:
    """Makes a folder and its parents.

    Raises:
      RequestError: There is something else of its name; or it cannot be made, which names what the folder came from.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RequestError(
            "is not a folder, and has to be one",
            where=str(error.filename),
            instead="the same command, once what has that name was moved away",
        ) from error
    except OSError as error:
        raise RequestError(
            f"the folder {path} cannot be written: {error.strerror}",
            key=key,
            instead=f"{key}{' ' if key.startswith('--') else '='}FOLDER, one that you can write to",
        ) from error


def refuse_foreign_link(folder: Path) -> None:
    """Raises RequestError if a folder that is to be written is a link which somebody else has made.

    One's own are followed, as to a larger disk.
    """
    try:
        found = os.lstat(folder)
    except OSError:
        return
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
        raise RequestError(
            f"is a link of user {found.st_uid}, and would be written through",
            where=str(folder),
            instead="a folder, or a link that you have made",
        )


def no_space(text: str) -> str | None:
    """How a text, of an error or a log, says that a disk or a quota is full; None if it is about something else."""
    found = _SAID_TO_BE_FULL.search(text)
    return None if found is None else found[0]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of writing a file, as the request error that names it and says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            problem, until = f"no space left to write: {error.strerror}", "there is space"
        else:
            problem, until = f"cannot be written: {error.strerror}", "it can be written"
        raise RequestError(problem, where=str(path), instead=f"the same command, once {until}") from error


def _regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file, which is the file of that name itself. Raises RequestError for anything else."""
    with suppress(FileNotFoundError):
        _refuse_irregular(path, os.lstat(path).st_mode)  # before it is opened: that alone may wait, or do something
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse_irregular(path, os.fstat(descriptor).st_mode)
    except RequestError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
        kind = next((name for is_kind, name in kinds if is_kind(mode)), "a device or a socket")
        raise RequestError(f"is {kind}, and files of a run are none", where=str(path), instead="the file itself")
