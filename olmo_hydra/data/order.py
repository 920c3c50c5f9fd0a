"""The global order of instances: OLMo-core's, number for number (allenai/OLMo-core, data/data_loader.py at fa6c501)."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.hashes import sha256_of_json
from olmo_hydra.data.files.once import make_once

VERSION = "pcg64-v1"  # of the rule below: part of every fingerprint, so that another rule never continues a run
BLOCK = 1 << 18  # numbers written, hashed or checked at a time
NUMBER = np.dtype("<u4")


class Order:
    """The orders of all epochs of a corpus, each made when it is first asked for and kept in a file.

    Names and format of the files are OLMo-core's, so that either reads the other's: headerless uint32, no tail dropped.
    Beside each, a small file of ours says what it is an order of, and has a hash of every block of it.

    Args:
      folder: Where the files are.
      n: Number of instances, below 2^32 - 1.
      seed: With the number of an epoch (from 1) it fixes the permutation.
      chunk: Instances that stay together, so that another sequence length keeps the token order. A rest of n below one
        chunk is not visited.
    """

    def __init__(self, folder: Path, n: int, *, seed: int, chunk: int = 1):
        if n >= 2**32 - 1:
            raise RequestError(f"{n:,} instances do not fit in the uint32 of the order", key="data.seq_len")
        self.folder, self.n, self.seed, self.chunk = folder, n, seed, chunk
        self.length = n // chunk * chunk
        self._chunks_together = max(1, BLOCK // chunk)
        self._block = self._chunks_together * chunk  # numbers
        self._hashes: dict[int, list[str]] = {}  # of the blocks of each epoch that is on disk
        self._seen: set[tuple[int, int]] = set()  # blocks, with their epoch, that are what their hash says

    def file(self, epoch: int) -> Path:
        """Where the order of an epoch is kept."""
        chunk = f"_chunk{self.chunk}" if self.chunk > 1 else ""
        return self.folder / f"global_indices{chunk}_dataset_size{self.n}_epoch{epoch}_seed{self.seed}_v1.npy"

    def read(self, epoch: int, start: int, count: int) -> np.ndarray:
        """Instances number `start` to `start + count - 1` of an epoch's order, uint32.

        Raises:
          RequestError: As `make`; or they are not what was written.
        """
        self.make(epoch)
        for block in range(start // self._block, -(-(start + count) // self._block)):
            if (epoch, block) not in self._seen:
                if _hash(self._read(epoch, block)) != self._hashes[epoch][block]:
                    raise self._wrong(epoch, f"has changed, after number {block * self._block:,}")
                self._seen.add((epoch, block))
        # Mapped anew each time: an epoch walks through the whole file, and pages of a map that stays would pile up.
        return np.array(np.memmap(self.file(epoch), NUMBER, mode="r", offset=4 * start, shape=(count,)))

    def make(self, epoch: int) -> None:
        """Sees to it that the order of an epoch is on disk, whole.

        A file that is there already is not trusted: what another program wrote is compared with the rule, once, and of
        our own each block with its hash, when it is first read.

        Raises:
          RequestError: It cannot be written, or the file that is there is not this order.
        """
        if epoch not in self._hashes:
            make_once(self.file(epoch), lambda partial: self._write(partial, epoch))
            self._hashes[epoch] = self._known(epoch)

    def sha256(self, epoch: int) -> str:
        """Of the whole order of an epoch: of the hashes of its blocks. Raises what `make` does."""
        self.make(epoch)
        return sha256_of_json(self._hashes[epoch])

    def _blocks(self, epoch: int) -> Iterator[np.ndarray]:
        """The order by the rule."""
        chunks = shuffled(self.length // self.chunk, self.seed + epoch)
        inside = np.arange(self.chunk, dtype=np.uint32)
        for start in range(0, len(chunks), self._chunks_together):
            some = chunks[start : start + self._chunks_together]
            numbers = some if self.chunk == 1 else some[:, None] * np.uint32(self.chunk) + inside
            yield numbers.reshape(-1).astype(NUMBER, copy=False)

    def _write(self, partial: Path, epoch: int) -> None:
        hashes = []
        with partial.open("wb") as out:
            for numbers in self._blocks(epoch):
                numbers.tofile(out)
                hashes.append(_hash(numbers))
        unfinished = self._note(epoch).with_suffix(".partial")
        self._write_note(unfinished, epoch, hashes)
        unfinished.replace(self._note(epoch))

    def _note(self, epoch: int) -> Path:
        return self.file(epoch).with_suffix(".blocks.json")

    def _facts(self, epoch: int) -> dict[str, str | int]:
        of = {"instances": self.n, "chunk": self.chunk, "seed": self.seed, "epoch": epoch}
        return {"rule": VERSION, **of, "numbers_of_a_block": self._block}

    def _known(self, epoch: int) -> list[str]:
        """The hashes of the blocks: those beside the file, or else those of a file that is compared with the rule."""
        try:
            size = self.file(epoch).stat().st_size
        except OSError as error:
            raise self._wrong(epoch, f"cannot be read ({error.strerror})") from error
        if size != 4 * self.length:
            raise self._wrong(epoch, f"has {size:,} bytes and not the {4 * self.length:,} of {self.length:,} numbers")
        if not self._note(epoch).is_file():
            if not os.access(self.folder, os.W_OK):  # one that is shared is compared by each reader
                return self._compared(epoch)
            make_once(self._note(epoch), lambda partial: self._write_note(partial, epoch, self._compared(epoch)))
        return self._noted(epoch)

    def _write_note(self, file: Path, epoch: int, hashes: list[str]) -> None:
        file.write_text(json.dumps(self._facts(epoch) | {"sha256_of_blocks": hashes}))

    def _noted(self, epoch: int) -> list[str]:
        """The hashes beside the file."""
        note = self._note(epoch)
        try:
            noted = json.loads(note.read_text())
            hashes: list[str] = noted["sha256_of_blocks"]
            if noted == self._facts(epoch) | {"sha256_of_blocks": hashes} and len(hashes) * self._block >= self.length:
                return hashes
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._wrong(epoch, f"cannot be compared with {note.name} ({error})") from error
        raise self._wrong(epoch, f"is not what {note.name} says of it")

    def _compared(self, epoch: int) -> list[str]:
        hashes = []
        for block, numbers in enumerate(self._blocks(epoch)):
            if not np.array_equal(numbers, self._read(epoch, block)):
                raise self._wrong(epoch, f"is not the order of seed {self.seed}, after number {block * self._block:,}")
            hashes.append(_hash(numbers))
        return hashes

    def _read(self, epoch: int, block: int) -> np.ndarray:
        try:
            return np.fromfile(self.file(epoch), NUMBER, self._block, offset=4 * block * self._block)
        except OSError as error:
            raise self._wrong(epoch, f"cannot be read ({error.strerror})") from error

    def _wrong(self, epoch: int, problem: str) -> RequestError:
        return RequestError(
            f"the saved order of epoch {epoch} {problem}", where=str(self.file(epoch)), instead="delete the file"
        )


def _hash(numbers: np.ndarray) -> str:
    return hashlib.sha256(numbers.data).hexdigest()


def shuffled(n: int, seed: int) -> np.ndarray:
    """0 to n - 1 in the order of PCG64(seed), uint32, made in place."""
    numbers = np.arange(n, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed)).shuffle(numbers)
    return numbers
