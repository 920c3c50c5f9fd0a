"""Files of the cache that are made once: by whichever process or thread comes first, whole or not at all."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from olmo_hydra.config.errors import RequestError


def make_once(file: Path, write: Callable[[Path], None]) -> None:
    """Makes `file` if it is not there. Others that want it wait meanwhile.

    The lock is the system's, one for the folder: it goes away with a process that dies, and what that left behind has
    another name, which the next one to write overwrites.

    Args:
      file: Where it shall be.
      write: Writes it under the name that it is given.

    Raises:
      RequestError: The folder cannot be written, or the disk is full.
    """
    if file.is_file():
        return
    partial = file.with_name(file.name + ".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file.parent / ".lock", "w", opener=untouched) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.is_file():
                try:
                    write(partial)
                    partial.replace(file)
                finally:
                    partial.unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(
            f"cannot write to the cache ({error.strerror or error})",
            key="run.root",
            where=str(file),
            instead="run.root=<a folder you can write, with some space>",
        ) from error


def untouched(path: str, flags: int) -> int:
    """Opens a lock file as `open` asks, but for its content, which stays, and for a link, which is an error."""
    return os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW, 0o666)
