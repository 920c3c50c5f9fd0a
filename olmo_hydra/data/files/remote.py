"""Files behind a URL, read through fsspec: copied whole into the cache, or in the ranges that are asked for."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.data.files.once import make_once

BLOCK = 1 << 24  # bytes copied at a time
DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
# By which drivers tell the versions of a file, the surest first.
VERSIONS = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "Digest"),
    *("LastModified", "Last-Modified", "mtime", "updated", "created"),
)
WAITS = (1.0, 4.0)  # seconds before what failed is tried again

T = TypeVar("T")


@dataclass(frozen=True)
class Remote:
    """A file behind a URL.

    `version` is what its driver tells it by from what was or will be there, empty where it does not. `copies` is the
    folder where it is copied to when it is first read; None: never copied.
    """

    url: str
    size: int
    version: str
    copies: Path | None

    def __str__(self) -> str:
        return self.url

    @property
    def place(self) -> Path | None:
        """Where its copy is, or will be; None: it is not copied."""
        if self.copies is None:
            return None
        # A file that has been replaced by another one is fetched anew.
        return self.copies / _short(f"{self.url} {self.size} {self.version}") / self.url.rpartition("/")[2]

    def copy(self) -> Path | None:
        """The whole file on this machine, fetched by the first process or thread that asks; None: it is not copied.

        Raises:
          RequestError: It is not what it was when it was found, or the cache cannot be written.
          RunFailed: It cannot be reached.
        """
        place = self.place
        if place is not None:
            make_once(place, self._fetch_whole)
        return place

    def fetch(self, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, or as many as there are. Raises what `copy` raises."""

        def ask() -> bytes:
            filesystem, path = filesystem_of(self.url)
            raw: bytes = filesystem.cat_file(path, start=start, end=start + count)
            return raw

        raw = _tried(self.url, ask)
        return raw if len(raw) <= count else raw[start : start + count]  # a server that only gives whole files

    def _fetch_whole(self, partial: Path) -> None:
        if _tried(self.url, lambda: _about(self.url)) != {"size": self.size, "version": self.version}:
            raise RequestError(
                "has changed since it was found", where=self.url, instead="the same once more, which finds it anew"
            )
        copied = _tried(self.url, lambda: _download(self.url, partial))
        if isinstance(copied, OSError):
            raise copied
        if copied != self.size:
            raise RequestError(f"gave {copied:,} bytes of {self.size:,}", where=self.url, instead="the same once more")


def is_url(text: str) -> bool:
    """Whether a file is reached through fsspec: `file://` is a path like any other."""
    return "://" in text and not text.startswith("file://")


def find(url: str, copies: Path | None) -> Remote:
    """The file behind a URL. Where it cannot be reached, a copy of what was there when it last could be.

    Raises:
      RequestError: It is absent, is a folder, or no driver for it is installed; or it cannot be reached and there is
        no copy.
    """
    about, failure = _asked(url, copies, lambda: _about(url))
    found = Remote(url, about["size"], about["version"], copies)
    if failure is not None and not (found.place and found.place.is_file()):
        raise failure
    return found


def glob(root: str, pattern: str, copies: Path | None) -> list[str]:
    """Paths below a URL of the files that match, sorted; where it cannot be reached, those that did when it could be.

    Raises:
      RequestError: It cannot be reached, and never was with these `copies`.
    """

    def ask() -> list[str]:
        filesystem, base = filesystem_of(root)
        base = base.rstrip("/") + "/"
        return sorted(path.removeprefix(base) for path in filesystem.glob(base + pattern))

    return _asked(f"{root}/{pattern}", copies, ask)[0]


def filesystem_of(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path there. Raises RequestError where its driver is not installed."""
    protocol = url.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        driver = DRIVERS.get(protocol)
        instead = f"pip install {driver}" if driver else str(error)
        raise RequestError(f"no driver for {protocol}:// is installed", where=url, instead=instead) from error
    except ValueError as error:
        known = "s3://, gs://, https:// or a folder"
        raise RequestError(f"there is no {protocol}:// ({error})", where=url, instead=known) from error


def _about(url: str) -> dict[str, Any]:
    filesystem, path = filesystem_of(url)
    info = filesystem.info(path)
    problem = None
    if info["type"] != "file":
        problem = "is no file"
    elif info.get("mimetype") == "text/html":  # so fsspec's HTTP shows a folder
        problem = "is a page of HTML, such as a server lists a folder in"
    elif info["size"] is None:
        problem = "does not say its size"
    if problem is not None:
        raise RequestError(problem, where=url, instead="a file of tokens")
    version = next((f"{key} {info[key]}" for key in VERSIONS if info.get(key)), "")
    return {"size": info["size"], "version": version}


def _download(url: str, partial: Path) -> int | OSError:
    """How many bytes were copied; or why they cannot be written, which no further try helps."""
    filesystem, path = filesystem_of(url)
    copied = 0
    with filesystem.open(path, "rb", block_size=BLOCK) as source, partial.open("wb", buffering=0) as target:
        while block := source.read(BLOCK):
            rest = memoryview(block)
            while rest:
                try:
                    rest = rest[target.write(rest) :]
                except OSError as error:
                    return error
            copied += len(block)
    return copied


def _asked(what: str, copies: Path | None, ask: Callable[[], T]) -> tuple[T, RequestError | None]:
    """What a server answers, kept beside the copies; where it cannot be reached, its last answer, and what failed.

    Raises:
      RequestError: It cannot be reached, and no answer is kept; or the answer is that it does not have it.
    """
    note = copies / "listing" / f"{_short(what)}.json" if copies is not None else None
    try:
        answer = _tried(what, ask)
    except RunFailed as failure:
        unreachable = RequestError(str(failure), where=what, instead="the same once more, or a copy of the files")
        if note is None or not note.is_file():
            raise unreachable from failure
        return json.loads(note.read_text("utf-8")), unreachable
    if note is not None:
        with suppress(OSError):  # nothing is lost but a start without a network
            _keep(json.dumps(answer), note)
    return answer, None


def _keep(text: str, note: Path) -> None:
    if note.is_file() and note.read_text("utf-8") == text:
        return
    note.parent.mkdir(parents=True, exist_ok=True)
    partial = note.with_name(f"{note.name}.{os.getpid()}-{threading.get_ident()}.partial")
    partial.write_text(text, "utf-8")
    partial.replace(note)


def _tried(what: str, work: Callable[[], T]) -> T:
    """The result of `work`, tried again where that may help. Drivers have exceptions of their own.

    Raises:
      RequestError: What is asked for is not there, or may not be read.
      RunFailed: No try succeeded.
    """
    for wait in (*WAITS, None):
        try:
            return work()
        except RequestError:
            raise
        except PermissionError as error:
            raise RequestError(f"may not be read ({error})", where=what, instead="credentials for it") from error
        except Exception as error:
            why: BaseException = error
            if isinstance(error, FileNotFoundError):  # fsspec's HTTP says so of whatever went wrong
                if error.__cause__ is None or not _is_unreachable(error.__cause__):
                    raise RequestError("there is no such file", where=what, instead="a file that is there") from error
                why = error.__cause__
            if wait is None:
                said = f"{type(why).__name__}: {why}"
                raise RunFailed(f"{what} cannot be read in {len(WAITS) + 1} tries ({said})") from error
            time.sleep(wait)
    raise AssertionError


def _is_unreachable(cause: BaseException) -> bool:
    """Whether that is why a file was not found, and not an answer that it is not there."""
    if isinstance(cause, OSError):
        return not isinstance(cause, FileNotFoundError)
    status = getattr(cause, "status", None)
    return type(cause).__module__.startswith("aiohttp.") and status not in (404, 410)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
