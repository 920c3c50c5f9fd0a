"""Held-out documents: never trained on, read by evaluation within limits."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from olmo_hydra.data.files.token_file import TokenFile, tokens_of
from olmo_hydra.data.instances.packing import documents
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class HeldoutDocument:
    """A document that is never trained on: its tokens without the end of the document, its size as UTF-8."""

    name: str
    tokens: np.ndarray
    n_bytes: int


def limited(
    found: Iterable[HeldoutDocument], tokenizer: Tokenizer, max_bytes: int | None, max_document_bytes: int | None
) -> list[HeldoutDocument]:
    """The first documents that fit a budget; cuts fall between characters.

    Args:
      found: Documents, read as far as they are needed.
      tokenizer: That made their tokens.
      max_bytes: Of all of them: the last one is cut there. None: all documents.
      max_document_bytes: Of each, so that more of them share a budget. None: whole.
    """
    kept: list[HeldoutDocument] = []
    left = sys.maxsize if max_bytes is None else max_bytes
    for document in found:
        limit = min(left, max_document_bytes or left)
        if document.n_bytes > limit:
            raw = cut(tokenizer.decode(document.tokens).encode(), limit)
            document = HeldoutDocument(document.name, tokenizer.encode(raw.decode()), len(raw))
        if not document.n_bytes:
            break
        left -= document.n_bytes
        kept.append(document)
    return kept


def of_files(
    files: Sequence[TokenFile], tokenizer: Tokenizer, max_bytes: int | None, max_document_bytes: int | None
) -> dict[str, list[HeldoutDocument]]:
    """The documents of token files, by label, in the order of the files: whatever has an end, named `file:number`.

    Args:
      files: Of any number of labels.
      tokenizer: That made them; its file is read, since evaluation counts the bytes of the text.
      max_bytes: Of each label, see `limited`.
      max_document_bytes: Of each document.

    Raises:
      RequestError: A file or the tokenizer's cannot be read, or a token is past the vocabulary.
    """
    by_label: dict[str, list[TokenFile]] = {}
    for file in files:
        by_label.setdefault(file.label, []).append(file)
    return {
        label: limited(_documents(mine, tokenizer), tokenizer, max_bytes, max_document_bytes)
        for label, mine in by_label.items()
    }


def digests(heldout: Mapping[str, Sequence[HeldoutDocument]]) -> dict[str, str]:
    """A hash of each domain's documents, of all that evaluation reads of them. Their names are not in it."""
    return {domain: _digest(documents) for domain, documents in heldout.items()}


def differences(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What two sets of `digests` differ in, a line each; none if they are of the same text."""
    lines = [f"no text of {domain} is held out any more" for domain in saved if domain not in now]
    lines += [f"text of {domain} is held out now" for domain in now if domain not in saved]
    changed = (domain for domain in now if saved.get(domain, now[domain]) != now[domain])
    return lines + [f"the held-out text of {domain} is another" for domain in changed]


def cut(raw: bytes, n_bytes: int) -> bytes:
    """The first `n_bytes` of a UTF-8 text, less a last character that would be torn."""
    return raw[:n_bytes].decode(errors="ignore").encode()


def _digest(documents: Iterable[HeldoutDocument]) -> str:
    hashed = hashlib.sha256()
    for document in documents:
        hashed.update(np.array([document.n_bytes, len(document.tokens)], "<u8").tobytes())
        hashed.update(document.tokens.astype("<u4").tobytes())  # whatever integer their file has
    return hashed.hexdigest()


def _documents(files: Sequence[TokenFile], tokenizer: Tokenizer) -> Iterator[HeldoutDocument]:
    for file in files:
        bounds = documents(file.tokens(), tokenizer.eos).tolist()
        for number, (start, end) in enumerate(pairwise(bounds)):
            tokens = tokens_of([file], 0, start, end - 1 - start, tokenizer.vocab_size)
            n_bytes = len(tokenizer.decode(tokens).encode())
            if n_bytes:
                yield HeldoutDocument(f"{file.name}:{number}", tokens, n_bytes)
