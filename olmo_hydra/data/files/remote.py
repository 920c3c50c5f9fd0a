"""Files behind a URL, read through fsspec: copied whole into the cache, or in the ranges that are asked for."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.once import make_once

BLOCK = 1 << 24  # bytes copied at a time
DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}


@dataclass(frozen=True)
class Remote:
    """A file behind a URL. `copies` is the folder where it is copied to when it is first read; None: never copied."""

    url: str
    size: int
    copies: Path | None

    def __str__(self) -> str:
        return self.url

    @property
    def place(self) -> Path | None:
        """Where its copy is, or will be; None: it is not copied."""
        if self.copies is None:
            return None
        # The size is in the name so that a file that has been replaced by another one is fetched anew.
        name = hashlib.sha256(f"{self.url} {self.size}".encode()).hexdigest()[:16]
        return self.copies / name / self.url.rpartition("/")[2]

    def copy(self) -> Path | None:
        """The whole file on this machine, fetched by the first process or thread that asks; None: it is not copied."""
        place = self.place
        if place is not None:
            make_once(place, self._fetch_whole)
        return place

    def fetch(self, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, or as many as there are. Raises RequestError, naming the URL."""
        with _named(self.url):
            filesystem, path = filesystem_of(self.url)
            raw: bytes = filesystem.cat_file(path, start=start, end=start + count)
        return raw if len(raw) <= count else raw[start : start + count]  # a server that only gives whole files

    def _fetch_whole(self, partial: Path) -> None:
        with _named(self.url):
            filesystem, path = filesystem_of(self.url)
            source = filesystem.open(path, "rb", block_size=BLOCK)
        copied = 0
        with source, partial.open("wb") as target:
            while block := self._read(source):
                copied += target.write(block)
        if copied != self.size:
            raise RequestError(f"gave {copied:,} bytes of {self.size:,}", where=self.url, instead="the same once more")

    def _read(self, source: Any) -> bytes:
        with _named(self.url):
            block: bytes = source.read(BLOCK)
        return block


def is_url(text: str) -> bool:
    """Whether a file is reached through fsspec: `file://` is a path like any other."""
    return "://" in text and not text.startswith("file://")


def find(url: str, copies: Path | None) -> Remote:
    """The file behind a URL. Raises RequestError if it is absent, is a folder, or no driver for it is installed."""
    with _named(url):
        filesystem, path = filesystem_of(url)
        info = filesystem.info(path)
    if info["type"] != "file" or info["size"] is None:
        problem = "is no file" if info["type"] != "file" else "does not say its size"
        raise RequestError(problem, where=url, instead="a file of tokens")
    return Remote(url, info["size"], copies)


def glob(root: str, pattern: str) -> list[str]:
    """Paths below a URL of the files that match, sorted."""
    with _named(f"{root}/{pattern}"):
        filesystem, base = filesystem_of(root)
        base = base.rstrip("/") + "/"
        return sorted(path.removeprefix(base) for path in filesystem.glob(base + pattern))


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


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Turns whatever a driver raises into an error that names the URL: each has exceptions of its own."""
    try:
        yield
    except RequestError:
        raise
    except FileNotFoundError as error:
        raise RequestError("there is no such file", where=url, instead="a file that is there") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise RequestError(f"cannot be read ({said})", where=url, instead="the same once more, or a copy") from error
