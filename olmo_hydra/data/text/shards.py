"""Token files of bounded size with their indices, joined from the encoded parts of a domain."""

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from olmo_hydra.data.companion import ENDING, Entry
from olmo_hydra.data.text.parts import Part

Document = tuple[str, int, int, str]  # name, tokens with its end, bytes of text, sha256 of it


def join(
    parts: Iterable[Part], corpus: Path, domain: str, split: str, itemsize: int, limit: int
) -> list[dict[str, Any]]:
    """Writes the token files of one side of a domain; gives their entries in the manifest.

    Args:
      parts: Encoded, in order.
      corpus: The folder.
      domain: One of its domains.
      split: `train` or `heldout`.
      itemsize: Bytes a token.
      limit: Tokens of a file. A document is never divided: one that is longer has a file of its own.
    """
    shards: list[_Shard] = []
    for document, tokens in _documents(parts, split, itemsize):
        if not shards or shards[-1].n_tokens + document[1] > limit:
            if shards:
                shards[-1].close()
            shards.append(_Shard(corpus, f"{split}/{domain}/{len(shards):05}", itemsize))
        shards[-1].add(document, tokens)
    if shards:
        shards[-1].close()
    return [{"domain": domain, "split": split, **shard.description} for shard in shards]


class _Shard:
    """A token file that is being written, and its index beside it."""

    def __init__(self, corpus: Path, stem: str, itemsize: int):
        self._itemsize = itemsize
        self._tokens = _Hashed(corpus, f"{stem}.npy")
        self._index = _Hashed(corpus, f"{stem}{ENDING}")
        # Neither the time nor a name: the same index has the same bytes.
        self._packed = gzip.GzipFile("", "wb", fileobj=self._index, mtime=0)
        self.n_tokens = 0
        self.description: dict[str, Any] = {"documents": 0}

    def add(self, document: Document, tokens: bytes) -> None:
        name, n_tokens, n_bytes, sha256 = document
        end = self.n_tokens + n_tokens
        self._packed.write(Entry(self.n_tokens, end, name, (str(n_bytes), sha256)).line().encode())
        self._tokens.write(tokens)
        self.n_tokens = end
        self.description["documents"] += 1

    def close(self) -> None:
        self._packed.close()
        self.description |= {"tokens": self.n_tokens, **self._tokens.close(), "index": self._index.close()}


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, corpus: Path, name: str):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        self._name, self._file = name, (corpus / name).open("wb")
        self._sha256 = hashlib.sha256()

    def write(self, content: bytes | memoryview) -> int:
        self._sha256.update(content)
        return self._file.write(content)

    def flush(self) -> None:  # gzip asks for it
        self._file.flush()

    def close(self) -> dict[str, Any]:
        size = self._file.tell()
        self._file.close()
        return {"path": self._name, "bytes": size, "sha256": self._sha256.hexdigest()}


def _documents(parts: Iterable[Part], split: str, itemsize: int) -> Iterator[tuple[Document, bytes]]:
    for part in parts:
        with part.path(split).open("rb") as tokens:
            for name, n_tokens, n_bytes, sha256 in part.lines(f"{split}.documents"):
                yield (name, n_tokens, n_bytes, sha256), tokens.read(n_tokens * itemsize)
