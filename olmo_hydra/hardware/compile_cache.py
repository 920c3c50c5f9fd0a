"""XLA's compilation cache, kept whole: JAX writes entries in place, and repairs none."""

import os
from contextlib import suppress
from pathlib import Path

import jax
import zstandard

LOOKED = ".looked"  # its time is that of the newest entry which was whole when this module last looked


def use(folder: Path, repair: bool) -> None:
    """From now on JAX keeps here whatever it compiles, however quickly; `repair` removes torn entries first."""
    if repair:
        remove_torn(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def remove_torn(folder: Path) -> None:
    """Removes entries that a killed process, or a full disk, has left half-written, of those made since the last look.

    JAX would warn of such an entry at every start, compile what it held anew, and leave it as it is (`LRUCache.put` of
    jax 0.10.2 writes no entry that is there). One that another process is just writing may go too: it is made again.
    One that cannot be read, of another user perhaps, is left to JAX, which warns of it.
    """
    looked = folder / LOOKED
    since = newest = looked.stat().st_mtime_ns if looked.exists() else 0
    for entry in folder.glob("*-cache"):
        with suppress(OSError):  # not ours to read or to remove; or another process was faster
            written = entry.stat().st_mtime_ns
            if written >= since:
                if _is_whole(entry):
                    newest = max(newest, written)
                else:
                    entry.unlink()
    if newest > since:
        with suppress(OSError):
            looked.touch()
            os.utime(looked, ns=(newest, newest))


def _is_whole(entry: Path) -> bool:
    try:
        zstandard.ZstdDecompressor().decompress(entry.read_bytes())  # as JAX reads it
    except zstandard.ZstdError:
        return False
    return True
