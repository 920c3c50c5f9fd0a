"""XLA's compilation cache, kept whole: JAX writes entries in place, and repairs none."""

from pathlib import Path

import zstandard


def remove_torn(folder: Path) -> None:
    """Removes entries that a killed process, or a full disk, has left half-written.

    JAX would warn of such an entry at every start, compile what it held anew, and leave it as it is (`LRUCache.put` of
    jax 0.10.2 writes no entry that is there). One that another process is just writing may go too: it is made again.
    """
    for entry in folder.glob("*-cache"):
        try:
            zstandard.ZstdDecompressor().decompress(entry.read_bytes())  # as JAX reads it
        except zstandard.ZstdError:
            entry.unlink(missing_ok=True)
        except FileNotFoundError:  # another process was faster
            continue
