"""What is made of each piece of text on the way to a corpus, in files that outlive a process that is killed.

A piece is a `Unit` of a source. Each of its parts is written under another name and renamed, its description last:
what is there is whole. No part depends on which process made it.

```
<number>.text                  UTF-8 of the piece's passages, one after the other
<number>.read.json             its documents: names, and hash and length of each passage
<number>.kept.json             which of them stay, on which side of the split, and where their text lies
<number>.train, .heldout       their tokens, an end after each document
<number>.encoded.json          of each document tokens, bytes and hash; texts of special tokens found
<number>.shared                which grams of held-out text its training text has
```
"""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import SPLITS
from olmo_hydra.data.text.sources import LeftOut, Unit
from olmo_hydra.data.text.sources.registry import NOT_INSTALLED, NOT_UTF8, SEPARATOR
from olmo_hydra.data.tokenizers import tokenizer

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


class Part:
    """The files of piece `number` in `folder`, by their endings."""

    def __init__(self, folder: Path, number: int):
        self.stem = folder / f"{number:06}"

    def path(self, ending: str) -> Path:
        """Where a file is."""
        return self.stem.with_name(f"{self.stem.name}.{ending}")

    def has(self, ending: str) -> bool:
        """Whether a file is there, and so whole."""
        return self.path(ending).is_file()

    def load(self, ending: str) -> Any:
        """What a JSON file holds."""
        return json.loads(self.path(ending).read_bytes())

    def save(self, ending: str, content: bytes | bytearray | memoryview) -> None:
        """Writes a file, whole or not at all."""
        path = self.path(ending)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(content)
        partial.replace(path)

    def documents(self) -> Iterator[tuple[str, list[Passage]]]:
        """Name and passages of every document that was read."""
        for name, passages in self.load("read.json")["documents"]:
            yield name, [Passage(bytes.fromhex(key), n_bytes) for key, n_bytes in passages]

    def kept(self) -> list[Kept]:
        """The documents that stay."""
        return [Kept(*fields) for fields in self.load("kept.json")]

    def texts(self, split: str) -> Iterator[tuple[str, bytes]]:
        """Name and UTF-8 of every document that stays on a side of the split."""
        with self.path("text").open("rb") as text:
            for document in self.kept():
                if document.split == split:
                    yield document.name, text_of(text.fileno(), document.places)[: document.n_bytes]


def text_of(descriptor: int, places: list[tuple[int, int]]) -> bytes:
    """Passages of a document, from an open file."""
    return SEPARATOR.encode().join(os.pread(descriptor, length, start) for start, length in places)


def read(part: Part, unit: Unit) -> None:
    """Reads a piece and hashes its passages."""
    text = bytearray()
    documents: list[tuple[str, list[tuple[str, int]]]] = []
    left_out: Counter[str] = Counter()
    absent: list[str] = []
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
            text += raw
            passages.append((hashlib.sha256(passage.strip().encode()).hexdigest()[:32], len(raw)))
        documents.append((document.name, passages))
    part.save("text", text)
    description = {"documents": documents, "left_out": left_out, "absent": absent}
    part.save("read.json", json.dumps(description).encode())


def encode(part: Part, name: str, corpus: Path) -> None:
    """Tokenizes what stays of a piece, with the tokenizer `name` as `corpus` has it.

    Raises:
      RequestError: A document holds the end of a document as an ordinary token.
    """
    tokens = _tokenizer(name, corpus)
    end = tokens.dtype.type(tokens.eos).tobytes()
    found: dict[str, Any] = {"special_tokens": Counter()}
    for split in SPLITS:
        out, found[split] = bytearray(), []
        for batch in _batches(part.texts(split)):
            texts = [raw.decode() for _, raw in batch]
            for special in tokens.specials:
                found["special_tokens"][special] += sum(text.count(special) for text in texts)
            for (document, raw), ids_T in zip(batch, tokens.encode_batch(texts), strict=True):
                if (ids_T == tokens.eos).any():
                    raise RequestError(
                        f"gives the end of a document ({tokens.eos}) inside {document}: it is an ordinary token",
                        key="data.tokenizer",
                        value=name,
                        instead="a tokenizer_config.json beside it that names another eos_token",
                    )
                out += np.ascontiguousarray(ids_T).tobytes() + end
                found[split].append((document, len(ids_T) + 1, len(raw), hashlib.sha256(raw).hexdigest()))
        part.save(split, out)
    found["special_tokens"] = +found["special_tokens"]
    part.save("encoded.json", json.dumps(found).encode())


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
