"""Bytes of a file, plain or compressed by gzip or Zstandard."""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import zstandard

# What reading a damaged file raises, at its start or further on; both formats tell when one is cut off.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
COMPRESSED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}  # what a file begins with
BLOCK = 1 << 20


def opened(path: Path) -> io.BufferedIOBase:
    """The content of a file, decompressed if its name ends in `.gz` or `.zst`. Raises OSError; reading, `DAMAGED`."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        return io.BufferedReader(_Frames(path), BLOCK)
    return path.open("rb")


def damage(path: Path) -> str:
    """Why reading a compressed file has raised one of `DAMAGED`."""
    begins = COMPRESSED[path.suffix]
    with path.open("rb") as file:
        return "damaged" if file.read(len(begins)) == begins else f"not compressed, as {path.suffix} says"


def ending(name: str) -> str:
    """The ending that tells what a file holds: that of `a.jsonl.gz` is `.jsonl`."""
    path = Path(name)
    return (Path(path.stem) if path.suffix in COMPRESSED else path).suffix.lower()


class _Frames(io.RawIOBase):
    """Zstandard frames one after the other. The library's own reader takes a cut frame for the end of the text."""

    def __init__(self, path: Path):
        self._file = path.open("rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            raw = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._begun = False
            raw = raw or self._file.read(BLOCK)
            if not raw:
                if self._begun:
                    raise EOFError("the last frame is cut off")
                return 0
            self._begun = True
            self._ready = self._frame.decompress(raw)
        n_bytes = min(len(buffer), len(self._ready))
        buffer[:n_bytes] = self._ready[:n_bytes]
        self._ready = self._ready[n_bytes:]
        return n_bytes
