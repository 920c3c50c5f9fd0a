"""Held-out loss by domain, with documents as units."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmo_hydra.data.heldout import HeldoutDocument
from olmo_hydra.data.loader import IGNORED

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(tokens_BT, labels_BT) -> nats_B: the summed cross-entropy of each row's labels that are not ignored."""


@dataclass(frozen=True)
class Rows:
    """Documents cut into rows of equal length; `document[i]` says which one row i is a part of."""

    tokens: np.ndarray
    labels: np.ndarray
    document: np.ndarray


def cut(documents: Sequence[HeldoutDocument], seq_len: int, eos: int) -> Rows:
    """Rows in which every token of every document is a target exactly once.

    A document is read after an end of document, which is how it begins in training; where it is longer than a row, the
    next row begins with the last token of the one before, and sees nothing earlier. The end itself is no target: it is
    no part of the text that the bytes are counted of.
    """
    tokens, labels, owner = [], [], []
    for index, document in enumerate(documents):
        text = np.concatenate([[eos], document.tokens.astype(np.int32)])
        for start in range(0, len(text) - 1, seq_len):
            targets = text[start + 1 : start + 1 + seq_len]
            row, row_labels = np.full(seq_len, eos, np.int32), np.full(seq_len, IGNORED, np.int32)
            row[: len(targets)], row_labels[: len(targets)] = text[start : start + len(targets)], targets
            tokens.append(row)
            labels.append(row_labels)
            owner.append(index)
    shape = (len(tokens), seq_len)
    return Rows(
        np.array(tokens, np.int32).reshape(shape), np.array(labels, np.int32).reshape(shape), np.array(owner, int)
    )


class HeldOut:
    """The held-out documents of a run, cut once and scored as often as wanted.

    Args:
      domains: Documents by domain.
      seq_len: Tokens of context, at most.
      eos: The token between documents.
      batch: Rows scored at once; the last batch is filled up, so that there is one shape. Changes no number.
    """

    def __init__(self, domains: Mapping[str, Sequence[HeldoutDocument]], *, seq_len: int, eos: int, batch: int):
        self._documents = domains
        self._rows = {name: cut(documents, seq_len, eos) for name, documents in domains.items()}
        self._batch = batch

    def evaluate(self, score: Score) -> dict[str, dict[str, Any]]:
        """Results by domain: documents, bytes, targets, nats, bits_per_byte and its standard error over documents."""
        return {
            name: summary(
                self._nats_by_document(name, score),
                np.array([document.n_bytes for document in documents]),
                sum(len(document.tokens) for document in documents),
            )
            for name, documents in self._documents.items()
        }

    def _nats_by_document(self, domain: str, score: Score) -> np.ndarray:
        rows = self._rows[domain]
        total = np.zeros(len(self._documents[domain]), np.float64)
        for start in range(0, len(rows.tokens), self._batch):
            part = slice(start, start + self._batch)
            missing = self._batch - len(rows.tokens[part])
            tokens = np.pad(rows.tokens[part], ((0, missing), (0, 0)))
            labels = np.pad(rows.labels[part], ((0, missing), (0, 0)), constant_values=IGNORED)
            nats = np.asarray(score(tokens, labels), np.float64)[: self._batch - missing]
            np.add.at(total, rows.document[part], nats)
        return total


def summary(nats: np.ndarray, n_bytes: np.ndarray, targets: int) -> dict[str, Any]:
    """Bits per byte of a domain and its standard error, from each document's nats and bytes, and all targets.

    The estimate is a ratio of sums, so that long documents weigh as much as their text; the error is the usual one of
    a ratio of means over independently drawn documents (Cochran, Sampling Techniques, 6.19), null for a single one.
    """
    documents, total_bytes = len(nats), int(n_bytes.sum())
    ratio = nats.sum() / total_bytes
    stderr = None
    if documents > 1:
        residuals = nats - ratio * n_bytes
        stderr = math.sqrt(documents / (documents - 1) * float(residuals @ residuals)) / total_bytes / math.log(2)
    return {
        "documents": documents,
        "bytes": total_bytes,
        "targets": targets,
        "nats": float(nats.sum()),
        "bits_per_byte": float(ratio / math.log(2)),
        "stderr": stderr,
    }


def row(step: int, suite: str, domains: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row of evals.jsonl; its `bits_per_byte` is the plain mean over domains."""
    mean = sum(domain["bits_per_byte"] for domain in domains.values()) / len(domains)
    return {"step": step, "suite": suite, "bits_per_byte": mean, "domains": domains}
