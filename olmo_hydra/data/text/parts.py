"""What is made of each piece of text on the way to a corpus, in files that outlive a process that is killed.

A piece is a `Unit` of a source. Each of its files is written under another name and renamed, its description last: what
is there is whole. None depends on which process made it, and none is held in memory.

```
texts/<key>.text               UTF-8 of the piece's passages, one after the other
texts/<key>.documents          its documents, a line each: name, and hash and length of each passage
texts/<key>.read.json          what was left out
<corpus>/parts/<number>.kept   which of them stay, a line each: name, side of the split, where their text lies, bytes
    .train, .heldout           their tokens, an end after each document
    .train.documents, ...      of each document name, tokens, bytes and hash
    .encoded.json              totals, and texts of special tokens found
    .shared                    which grams of held-out text its training text has
```

A text's key names all that decides its reading, so that it is read once for every corpus that is tried in this folder.
"""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import SPLITS
from olmo_hydra.data.text.sources import LeftOut, Unit
from olmo_hydra.data.text.sources.registry import NOT_INSTALLED, NOT_UTF8, SEPARATOR
from olmo_hydra.data.tokenizers import tokenizer

READ = ("text", "documents", "read.json")  # what depends on the text alone
BATCH = 4 << 20  # bytes of text tokenized and written at once


@dataclass(frozen=True)
class Passage:
    """A text of its own in a document that collects them, or all of a document.

    `key` is the hash of the text without the white space around it, by which copies are found.
    """

    key: bytes
    n_bytes: int


@dataclass(frozen=True)
class Kept:
    """A document that stays: its side of the split, where its passages lie in the text, and its size after the cut."""

    name: str
    split: str
    places: list[tuple[int, int]]
    n_bytes: int


@dataclass(frozen=True)
class Part:
    """The files of a piece, by their endings: `text` is how the names of those begin that reading it makes, `work` how
    those of one corpus do."""

    text: Path
    work: Path

    def path(self, ending: str) -> Path:
        """Where a file is."""
        stem = self.text if ending in READ else self.work
        return stem.with_name(f"{stem.name}.{ending}")

    def has(self, ending: str) -> bool:
        """Whether a file is there, and so whole."""
        return self.path(ending).is_file()

    def load(self, ending: str) -> Any:
        """What a JSON file holds."""
        return json.loads(self.path(ending).read_bytes())

    def lines(self, ending: str) -> Iterator[Any]:
        """What the lines of a file hold, each JSON."""
        with self.path(ending).open("rb") as opened:
            yield from map(json.loads, opened)

    @contextmanager
    def writing(self, ending: str) -> Iterator[BinaryIO]:
        """Writes a file, whole or not at all."""
        path = self.path(ending)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as out:
            yield out
        partial.replace(path)

    def save(self, ending: str, content: bytes) -> None:
        """Writes a short file, whole or not at all."""
        with self.writing(ending) as out:
            out.write(content)

    def documents(self) -> Iterator[tuple[str, list[Passage]]]:
        """Name and passages of every document that was read."""
        for name, passages in self.lines("documents"):
            yield name, [Passage(bytes.fromhex(key), n_bytes) for key, n_bytes in passages]

    def texts(self, split: str) -> Iterator[tuple[str, bytes]]:
        """Name and UTF-8 of every document that stays on a side of the split."""
        with self.path("text").open("rb") as text:
            for fields in self.lines("kept"):
                document = Kept(*fields)
                if document.split == split:
                    yield document.name, text_of(text.fileno(), document.places)[: document.n_bytes]


def line(fields: Any) -> bytes:
    """A line that `Part.lines` reads."""
    return json.dumps(fields).encode() + b"\n"


def text_of(descriptor: int, places: list[tuple[int, int]]) -> bytes:
    """Passages of a document, from an open file."""
    return SEPARATOR.encode().join(os.pread(descriptor, length, start) for start, length in places)


def read(part: Part, unit: Unit) -> None:
    """Reads a piece and hashes its passages."""
    left_out: Counter[str] = Counter()
    absent: list[str] = []
    with part.writing("text") as text, part.writing("documents") as documents:
        for document in unit.read():
            if isinstance(document, LeftOut):
                left_out[document.reason] += 1
                absent += [document.name] if document.reason == NOT_INSTALLED else []
                continue
            passages = []
            for passage in document.passages or (document.text,):
                try:
                    raw = passage.encode()
                except UnicodeEncodeError:  # a lone surrogate
                    left_out[NOT_UTF8] += 1
                    continue
                text.write(raw)
                passages.append((hashlib.sha256(passage.strip().encode()).hexdigest()[:32], len(raw)))
            documents.write(line((document.name, passages)))
    part.save("read.json", json.dumps({"left_out": left_out, "absent": absent}).encode())


def encode(part: Part, name: str, corpus: Path) -> None:
    """Tokenizes what stays of a piece, with the tokenizer `name` as `corpus` has it.

    Raises:
      RequestError: A document holds the end of a document as an ordinary token.
    """
    tokens = _tokenizer(name, corpus)
    specials: Counter[str] = Counter()
    totals = {split: _encode_side(part, split, name, tokens, specials) for split in SPLITS}
    part.save("encoded.json", json.dumps({**totals, "special_tokens": +specials}).encode())


def _encode_side(
    part: Part, split: str, name: str, tokens: tokenizer.Tokenizer, specials: Counter[str]
) -> dict[str, int]:
    end = tokens.dtype.type(tokens.eos).tobytes()
    total = {"documents": 0, "bytes": 0, "tokens": 0}
    with part.writing(split) as out, part.writing(f"{split}.documents") as index:
        for batch in _batches(part.texts(split)):
            texts = [raw.decode() for _, raw in batch]
            for special in tokens.specials:
                specials[special] += sum(text.count(special) for text in texts)
            for (document, raw), ids_T in zip(batch, tokens.encode_batch(texts), strict=True):
                if (ids_T == tokens.eos).any():
                    raise RequestError(
                        f"gives the end of a document ({tokens.eos}) inside {document}: it is an ordinary token",
                        key="data.tokenizer",
                        value=name,
                        instead="a tokenizer_config.json beside it that names another eos_token",
                    )
                out.write(np.ascontiguousarray(ids_T).tobytes() + end)
                index.write(line((document, len(ids_T) + 1, len(raw), hashlib.sha256(raw).hexdigest())))
                for field, count in (("documents", 1), ("bytes", len(raw)), ("tokens", len(ids_T) + 1)):
                    total[field] += count
    return total


@functools.lru_cache(maxsize=1)
def _tokenizer(name: str, corpus: Path) -> tokenizer.Tokenizer:
    return tokenizer.build(name, corpus)


def _batches(texts: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for name, raw in texts:
        batch.append((name, raw))
        size += len(raw)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
