"""Bytes of a file, wherever it lies."""

import os
from pathlib import Path
from stat import S_ISREG

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.remote import Remote

Place = Path | Remote


def local(place: Place) -> Path | None:
    """The file on this machine, copied here first if need be; None: it stays where it is."""
    return place.copy() if isinstance(place, Remote) else place


def size_of(place: Place) -> int:
    """Bytes of a file. Raises RequestError if it is absent, or is no file."""
    if isinstance(place, Remote):
        return place.size
    try:
        found = place.stat()
    except OSError as error:
        raise unreadable(place, error) from error
    if not S_ISREG(found.st_mode):
        raise RequestError("is no regular file", where=str(place), instead="a file of tokens")
    return found.st_size


def version(place: Place) -> str:
    """When a local file was last written, in nanoseconds of the system's clock; what a server tells a remote one by."""
    try:
        return place.version if isinstance(place, Remote) else str(place.stat().st_mtime_ns)
    except OSError as error:
        raise unreadable(place, error) from error


def peek(place: Place, start: int, count: int) -> bytes:
    """Few bytes, or as many as there are, for which nothing is copied. Raises RequestError, naming the file."""
    if isinstance(place, Remote) and not (place.place and place.place.is_file()):
        return place.fetch(start, count)
    buffer = bytearray(count)
    return bytes(buffer[: read_into(place, start, memoryview(buffer))])


def read_into(place: Place, start: int, buffer: memoryview) -> int:
    """Fills `buffer` with the bytes from `start` on, and returns how many there were.

    Not through a map: reading the map of a file that has shrunk ends the process. And opened each time, for a few
    microseconds: a mix has more files than a process may keep open.

    Raises:
      RequestError: The file cannot be read.
    """
    path = local(place)
    if path is None:
        assert isinstance(place, Remote)
        raw = place.fetch(start, len(buffer))
        buffer[: len(raw)] = raw
        return len(raw)
    got = 0
    try:
        with path.open("rb", buffering=0) as file:
            while got < len(buffer) and (more := os.preadv(file.fileno(), [buffer[got:]], start + got)):
                got += more
    except OSError as error:
        raise unreadable(place, error) from error
    return got


def unreadable(place: Place, error: OSError) -> RequestError:
    """What to say of a file that the system does not give."""
    return RequestError(f"the file cannot be read ({error.strerror})", where=str(place), instead="a file that is there")
