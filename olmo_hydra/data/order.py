"""The global order of instances: OLMo-core's, number for number (allenai/OLMo-core, data/data_loader.py at fa6c501)."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.once import make_once

VERSION = "pcg64-v1"  # of the rule below: part of every fingerprint, so that another rule never continues a run
BLOCK = 1 << 22  # numbers written or checked at a time
NUMBER = np.dtype("<u4")
SAMPLES, SAMPLE = 64, 1024  # stretches of a file that its hash covers, and numbers in each
COMPARED = 1 << 20  # chunks up to which an order that another program wrote is compared with the rule


class Order:
    """The orders of all epochs of a corpus, each made when it is first asked for and kept in a file.

    Names and format of the files are OLMo-core's, so that either reads the other's: headerless uint32, no tail dropped.
    Beside each, a small file of ours says what is in it.

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
        self._ready: set[int] = set()

    def file(self, epoch: int) -> Path:
        """Where the order of an epoch is kept."""
        chunk = f"_chunk{self.chunk}" if self.chunk > 1 else ""
        return self.folder / f"global_indices{chunk}_dataset_size{self.n}_epoch{epoch}_seed{self.seed}_v1.npy"

    def read(self, epoch: int, start: int, count: int) -> np.ndarray:
        """Instances number `start` to `start + count - 1` of an epoch's order, uint32. Raises what `make` does."""
        self.make(epoch)
        # Mapped anew each time: an epoch walks through the whole file, and pages of a map that stays would pile up.
        return np.array(np.memmap(self.file(epoch), NUMBER, mode="r", offset=4 * start, shape=(count,)))

    def make(self, epoch: int) -> None:
        """Sees to it that the order of an epoch is on disk, whole.

        A file that is there already is not trusted: its size and a hash of samples are looked at, and one that another
        program wrote is read once, and must be a permutation.

        Raises:
          RequestError: It cannot be written, or the file that is there is not this order.
        """
        if epoch not in self._ready:
            make_once(self.file(epoch), lambda partial: self._write(partial, epoch))
            self._check(epoch)
            self._ready.add(epoch)

    def _write(self, partial: Path, epoch: int) -> None:
        chunks = shuffled(self.length // self.chunk, self.seed + epoch)
        with partial.open("wb") as out:
            for start in range(0, len(chunks), BLOCK):
                self._spread(chunks[start : start + BLOCK]).tofile(out)
        self._note(epoch, partial)

    def _spread(self, chunks: np.ndarray) -> np.ndarray:
        """The instances of chunks."""
        if self.chunk == 1:
            return chunks.astype(NUMBER, copy=False)
        inside = np.arange(self.chunk, dtype=np.uint32)
        return (chunks[:, None] * np.uint32(self.chunk) + inside).reshape(-1).astype(NUMBER, copy=False)

    def _facts(self, file: Path) -> dict[str, str]:
        """What the file beside an order says of it."""
        samples = hashlib.sha256()
        for start in np.linspace(0, max(0, self.length - SAMPLE), SAMPLES, dtype=np.int64).tolist():
            samples.update(np.fromfile(file, NUMBER, SAMPLE, offset=4 * start).tobytes())
        return {"rule": VERSION, "sha256_of_samples": samples.hexdigest()}

    def _note(self, epoch: int, file: Path) -> None:
        note = self.file(epoch).with_suffix(".json")
        partial = note.with_suffix(".json.partial")
        partial.write_text(json.dumps(self._facts(file)))
        partial.replace(note)

    def _check(self, epoch: int) -> None:
        file = self.file(epoch)
        note = file.with_suffix(".json")
        try:
            size = file.stat().st_size
            if size != 4 * self.length:
                raise self._wrong(
                    epoch, f"has {size:,} bytes and not the {4 * self.length:,} of {self.length:,} numbers"
                )
            if note.is_file():
                if json.loads(note.read_text()) != self._facts(file):
                    raise self._wrong(epoch, f"is not what {note.name} says of it")
                return
            if not self._is_permutation(epoch):
                raise self._wrong(epoch, f"is not an order of {self.length:,} instances")
        except (OSError, ValueError) as error:
            raise self._wrong(epoch, f"cannot be checked ({error})") from error
        with suppress(
            OSError
        ):  # an order that cannot be written beside, such as a shared one, is checked by each reader
            self._note(epoch, file)

    def _is_permutation(self, epoch: int) -> bool:
        """Whether a file visits every whole chunk once; where it is short, whether in the order of the rule."""
        n_chunks = self.length // self.chunk
        numbers = np.memmap(self.file(epoch), NUMBER, mode="r")
        if n_chunks <= COMPARED:
            return np.array_equal(numbers, self._spread(shuffled(n_chunks, self.seed + epoch)))
        seen = np.zeros(n_chunks, bool)
        for start in range(0, n_chunks, BLOCK):
            block = np.array(numbers[start * self.chunk : (start + BLOCK) * self.chunk])
            chunks = block[:: self.chunk] // np.uint32(self.chunk)
            if chunks.max() >= n_chunks or not np.array_equal(self._spread(chunks), block):
                return False
            seen[chunks] = True
        return bool(seen.all())

    def _wrong(self, epoch: int, problem: str) -> RequestError:
        return RequestError(
            f"the saved order of epoch {epoch} {problem}", where=str(self.file(epoch)), instead="delete the file"
        )


def shuffled(n: int, seed: int) -> np.ndarray:
    """0 to n - 1 in the order of PCG64(seed), uint32, made in place."""
    numbers = np.arange(n, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed)).shuffle(numbers)
    return numbers
