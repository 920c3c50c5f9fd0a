"""A prepared corpus: token files, split into train and held-out, and the manifest that describes them.

```
manifest.json                      what it was made of and by, totals, and a hash of every file
tokenizer.json                     unless bytes are tokens
train/<domain>/00000.npy           tokens without a header, documents one after the other, each with an end
train/<domain>/00000.csv.gz        where its documents begin and end, their names, sizes and hashes
heldout/<domain>/...               likewise
```
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from olmo_hydra.config.data import DataConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data import companion
from olmo_hydra.data.files.hashes import sha256_of_file, sha256_of_json
from olmo_hydra.data.files.token_file import TokenFile, open_file, tokens_of
from olmo_hydra.data.heldout import HeldoutDocument, limited
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer, build

SPLITS = ("train", "heldout")
MANIFEST = "manifest.json"


class Corpus:
    """A corpus that `prepare` wrote, opened from its folder.

    Args:
      folder: Where it lies.
      in_cache: Whether the folder is ours, so that it may be dropped and is prepared again.

    Raises:
      RequestError: The folder is no corpus, or damaged: no readable manifest or tokenizer, or a file of another size
        than the manifest says.
    """

    def __init__(self, folder: Path, *, in_cache: bool = False):
        self.folder, self._in_cache = folder, in_cache
        try:
            self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        except FileNotFoundError as error:
            raise self._damaged(f"it has no {MANIFEST}") if in_cache else _not_ours(folder, "is not there") from error
        except (OSError, ValueError) as error:
            raise self._damaged(f"its {MANIFEST} cannot be read") from error
        _require_ours(folder, self.manifest)
        for file in self.manifest["files"]:
            for part in (file, file["index"]):
                path = folder / part["path"]
                if not path.is_file() or path.stat().st_size != part["bytes"]:
                    raise self._damaged(f"{part['path']} does not have the {part['bytes']} bytes of the manifest")
        if self.manifest.get("fingerprint", self.fingerprint) != self.fingerprint:
            raise self._damaged("its fingerprint is not that of its files")
        self.tokenizer = self._tokenizer()

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the order of the config."""
        return list(self.manifest["domains"])

    @property
    def fingerprint(self) -> str:
        """sha256 of what determines the tokens: the tokenizer, and the order and content of all token files."""
        return fingerprint_of(self.manifest["tokenizer"], self.manifest["files"])

    def train_files(self) -> list[TokenFile]:
        """Token files to train on, in domain order, with an end after every document."""
        return [self._opened(file) for file in self._files("train")]

    def heldout_documents(self, cfg: DataConfig) -> dict[str, list[HeldoutDocument]]:
        """What evaluation reads, by domain. Domains without held-out documents are none."""
        held_out = [domain for domain, summary in self.manifest["domains"].items() if summary["heldout"]["documents"]]
        return {domain: self.heldout(domain, cfg.heldout_bytes, cfg.heldout_document_bytes) for domain in held_out}

    def heldout(
        self, domain: str, max_bytes: int | None, max_document_bytes: int | None = None
    ) -> list[HeldoutDocument]:
        """Held-out documents of a domain in a fixed random order.

        Args:
          domain: One of `domains`.
          max_bytes: Of all of them: the last one is cut there. None: all documents.
          max_document_bytes: Of each, so that more documents share a budget. Cuts fall between characters.
        """
        return limited(self._heldout(domain), self.tokenizer, max_bytes, max_document_bytes)

    def entries(self, file: dict[str, Any]) -> list[companion.Entry]:
        """The documents of a file of the manifest, in order; their further fields are bytes and sha256 of the text."""
        return list(companion.entries(self.folder / file["index"]["path"]))

    def verify(self) -> None:
        """Reads every file. Raises RequestError unless hashes, indices, ends of documents and totals agree."""
        totals = {domain: {split: _nothing() for split in SPLITS} for domain in self.domains}
        tokenizer = self.manifest["tokenizer"].get("sha256")
        if tokenizer is not None and sha256_of_file(self.folder / "tokenizer.json") != tokenizer:
            raise self._damaged("the content of tokenizer.json has changed")
        for file in self.manifest["files"]:
            for part in (file, file["index"]):
                if sha256_of_file(self.folder / part["path"]) != part["sha256"]:
                    raise self._damaged(f"the content of {part['path']} has changed")
            entries = self.entries(file)
            ends = np.array([entry.end for entry in entries])
            starts = np.concatenate([[0], ends[:-1]]).tolist()
            tokens = np.fromfile(self.folder / file["path"], self.tokenizer.dtype)
            at_end = np.flatnonzero(tokens == self.tokenizer.eos) + 1
            if starts != [entry.start for entry in entries] or not np.array_equal(at_end, ends):
                raise self._damaged(f"the documents of {file['path']} are not those of its index")
            total = totals[file["domain"]][file["split"]]
            total["documents"] += len(entries)
            total["bytes"] += sum(int(entry.more[0]) for entry in entries)
            total["tokens"] += len(tokens)
        for domain, summary in self.manifest["domains"].items():
            if {split: summary[split] for split in SPLITS} != totals[domain]:
                raise self._damaged(f"the totals of {domain} are not those of its documents")

    def _tokenizer(self) -> Tokenizer:
        name, path = self.manifest["recipe"]["tokenizer"], self.folder / "tokenizer.json"
        if name != "bytes" and not path.is_file():
            raise self._damaged(f"it has no {path.name}")
        try:
            found = build(name, self.folder)
        except RequestError as error:
            raise self._damaged(f"its tokenizer {error.problem}") from error
        ids = {"vocab_size": found.vocab_size, "eos": found.eos, "pad": found.pad}
        if not ids.items() <= self.manifest["tokenizer"].items():
            raise self._damaged("its tokenizer is not the one of the manifest")
        return found

    def _damaged(self, problem: str) -> RequestError:
        instead = "the folder as it was written, or `olmo-hydra data prepare SOURCE... --out NEW_FOLDER`"
        if self._in_cache:
            instead = f"rm -r {self.folder}, and the same command again prepares it anew"
        return RequestError(f"the prepared data is damaged: {problem}", where=str(self.folder), instead=instead)

    def _files(self, split: str, domain: str | None = None) -> Iterator[dict[str, Any]]:
        for file in self.manifest["files"]:
            if file["split"] == split and domain in (None, file["domain"]):
                yield file

    def _opened(self, file: dict[str, Any]) -> TokenFile:
        path = self.folder / file["path"]
        return open_file(path, self.tokenizer.dtype, label=file["domain"], name=file["path"])

    def _heldout(self, domain: str) -> Iterator[HeldoutDocument]:
        listed = list(self._files("heldout", domain))
        files = [self._opened(file) for file in listed]
        placed = [(entry, number) for number, file in enumerate(listed) for entry in self.entries(file)]
        split_seed = self.manifest["recipe"]["split_seed"]
        for entry, number in sorted(placed, key=lambda found: split_point(split_seed, domain, found[0].name)):
            length = entry.end - 1 - entry.start
            tokens = tokens_of(files, number, entry.start, length, self.tokenizer.vocab_size)
            yield HeldoutDocument(entry.name, tokens, int(entry.more[0]))


def fingerprint_of(tokenizer: dict[str, Any], files: list[dict[str, Any]]) -> str:
    """A corpus's fingerprint, from the entries `tokenizer` and `files` of its manifest."""
    return sha256_of_json([tokenizer, [(file["path"], file["bytes"], file["sha256"]) for file in files]])


def split_point(split_seed: int, domain: str, name: str) -> float:
    """A document's place in [0, 1), from a hash of its name: held out if it lies below the held-out fraction.

    It depends on nothing but the three arguments, so that documents that come or go move no other one across the split.
    """
    return int(sha256_of_json([split_seed, domain, name])[:13], 16) / 16**13  # 52 bits: exact in a float


def _nothing() -> dict[str, int]:
    return {"documents": 0, "bytes": 0, "tokens": 0}


def _require_ours(folder: Path, manifest: Any) -> None:
    """Refuses a manifest that has not what is read of one."""
    try:
        manifest["recipe"]["split_seed"]
        complete = (
            isinstance(manifest["recipe"]["tokenizer"], str)
            and isinstance(manifest["tokenizer"], dict)
            and {"algorithm", "python", "tokenizer"} <= manifest.keys()
            and all(summary[split]["documents"] >= 0 for summary in manifest["domains"].values() for split in SPLITS)
            and all(
                _is_below(part["path"]) and part.keys() >= {"bytes", "sha256"}
                for file in manifest["files"]
                for part in (file, file["index"])
            )
            and all(file["split"] in SPLITS and file["domain"] in manifest["domains"] for file in manifest["files"])
        )
    except (KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise _not_ours(folder, "is of something else")


def _is_below(path: Any) -> bool:
    """Whether it names a file of the folder, and none that lies elsewhere."""
    return type(path) is str and not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts


def _not_ours(folder: Path, problem: str) -> RequestError:
    return RequestError(
        f"is no prepared corpus: its {MANIFEST} {problem}",
        where=str(folder),
        instead="a folder that `olmo-hydra data prepare SOURCE... --out FOLDER` made",
    )
