"""A prepared corpus: token files, split into train and held-out, and the manifest that describes them."""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmo_hydra.config.data import DataConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files import TokenFile, open_file
from olmo_hydra.data.tokenizer import build

SPLITS = ("train", "heldout")
MANIFEST = "manifest.json"


@dataclass(frozen=True, eq=False)
class HeldoutDocument:
    """A document that is never trained on: its tokens without the end of the document, its size as UTF-8."""

    name: str
    tokens: np.ndarray
    n_bytes: int


class Corpus:
    """A corpus that `prepare` wrote, opened from its folder.

    Raises:
      RequestError: The folder is damaged: no readable manifest, or a file of another size than the manifest says.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise _damaged(folder, f"its {MANIFEST} cannot be read") from error
        for file in self.manifest["files"]:
            path = folder / file["path"]
            if not path.is_file() or path.stat().st_size != file["bytes"]:
                raise _damaged(folder, f"{file['path']} does not have the {file['bytes']} bytes of the manifest")
        self.tokenizer = build(self.manifest["recipe"]["tokenizer"])

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the order of the config."""
        return list(self.manifest["domains"])

    @property
    def fingerprint(self) -> str:
        """sha256 of what determines the tokens: the tokenizer, and the order and content of all token files."""
        files = [(file["path"], file["bytes"], file["sha256"]) for file in self.manifest["files"]]
        return digest([self.manifest["recipe"]["tokenizer"], files])

    def train_files(self) -> list[TokenFile]:
        """Token files to train on, in domain order, with an end after every document."""
        dtype = self.tokenizer.dtype
        names = {domain: token_file(domain, "train") for domain in self.domains}
        return [open_file(self.folder / name, dtype, label=domain, name=name) for domain, name in names.items()]

    def heldout_documents(self, cfg: DataConfig) -> dict[str, list[HeldoutDocument]]:
        """What evaluation reads, by domain."""
        limits = cfg.heldout_bytes, cfg.heldout_document_bytes
        return {domain: self.heldout(domain, *limits) for domain in self.domains}

    def heldout(
        self, domain: str, max_bytes: int | None, max_document_bytes: int | None = None
    ) -> list[HeldoutDocument]:
        """Held-out documents of a domain in a fixed random order.

        Args:
          domain: One of `domains`.
          max_bytes: Of all of them: the last one is cut there. None: all documents.
          max_document_bytes: Of each, so that more documents share a budget. Cuts fall between characters.
        """
        documents: list[HeldoutDocument] = []
        left = sys.maxsize if max_bytes is None else max_bytes
        for document in self._heldout(domain):
            limit = min(left, max_document_bytes or left)
            if document.n_bytes > limit:
                document = self._cut(document, limit)
            if not document.n_bytes:
                break
            left -= document.n_bytes
            documents.append(document)
        return documents

    def verify(self) -> None:
        """Reads every token file. Raises RequestError unless files, documents and totals agree with each other."""
        for domain in self.domains:
            for split in SPLITS:
                counted = totals(self.manifest["documents"][domain], split)
                size = (self.folder / token_file(domain, split)).stat().st_size
                in_file = counted["tokens"] * self.tokenizer.dtype.itemsize
                if counted != self.manifest["domains"][domain][split] or size != in_file:
                    raise _damaged(self.folder, f"the totals of {domain} ({split}) are not those of its documents")
        for file in self.manifest["files"]:
            with (self.folder / file["path"]).open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                    raise _damaged(self.folder, f"the content of {file['path']} has changed")

    def _heldout(self, domain: str) -> Iterator[HeldoutDocument]:
        tokens = np.fromfile(self.folder / token_file(domain, "heldout"), self.tokenizer.dtype)
        entries = [entry for entry in self.manifest["documents"][domain] if entry["split"] == "heldout"]
        split_seed = self.manifest["recipe"]["split_seed"]
        for entry in sorted(entries, key=lambda entry: split_point(split_seed, domain, entry["name"])):
            start = entry["offset"]
            yield HeldoutDocument(entry["name"], tokens[start : start + entry["tokens"]], entry["bytes"])

    def _cut(self, document: HeldoutDocument, n_bytes: int) -> HeldoutDocument:
        raw = cut(self.tokenizer.decode(document.tokens).encode(), n_bytes)
        return HeldoutDocument(document.name, self.tokenizer.encode(raw.decode()), len(raw))


def split_point(split_seed: int, domain: str, name: str) -> float:
    """A document's place in [0, 1), from a hash of its name: held out if it lies below the held-out fraction.

    It depends on nothing but the three arguments, so that documents that come or go move no other one across the split.
    """
    return int(digest([split_seed, domain, name])[:13], 16) / 16**13  # 52 bits: exact in a float


def token_file(domain: str, split: str) -> str:
    """Path of a domain's token file inside the corpus folder."""
    return f"{split}/{domain}.bin"


def totals(entries: list[dict[str, Any]], split: str) -> dict[str, int]:
    """Of the documents of a split: their number, bytes of text, and tokens in the file, an end each included."""
    mine = [entry for entry in entries if entry["split"] == split]
    return {
        "documents": len(mine),
        "bytes": sum(entry["bytes"] for entry in mine),
        "tokens": sum(entry["tokens"] + 1 for entry in mine),
    }


def cut(raw: bytes, n_bytes: int) -> bytes:
    """The first `n_bytes` of a UTF-8 text, less a last character that would be torn."""
    return raw[:n_bytes].decode(errors="ignore").encode()


def digest(content: Any) -> str:
    """sha256 of a value's JSON."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _damaged(folder: Path, problem: str) -> RequestError:
    return RequestError(
        f"the prepared data is damaged: {problem}",
        where=str(folder),
        instead=f"rm -r {folder}, and the same command again prepares it anew",
    )
