"""Held-out loss by domain, with documents as units."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmo_hydra.data.heldout import HeldoutDocument
from olmo_hydra.data.loader import IGNORED

Score = Callable[[np.ndarray, np.ndarray], Any]
"""(tokens_BT, labels_BT) -> nats_B: the summed cross-entropy of each row's labels that are not ignored, as an array
that NumPy takes: on devices it need not be ready."""

Scores = dict[str, list[Any]]  # nats_B of every batch, by domain


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

    def scores(self, score: Score) -> Scores:
        """What `score` says of every batch. Waits for no device that it uses."""
        return {name: [score(*batch) for batch in self._batches(rows)] for name, rows in self._rows.items()}

    def results(self, scores: Scores) -> dict[str, dict[str, Any]]:
        """Results by domain: documents, bytes, targets, nats, bits_per_byte and its standard error over documents."""
        return {
            name: summary(
                self._nats_by_document(name, scores[name]),
                np.array([document.n_bytes for document in documents]),
                sum(len(document.tokens) for document in documents),
            )
            for name, documents in self._documents.items()
        }

    def _batches(self, rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Tokens and labels of each batch, the last one filled up."""
        for start in range(0, len(rows.tokens), self._batch):
            tokens, labels = rows.tokens[start : start + self._batch], rows.labels[start : start + self._batch]
            missing = ((0, self._batch - len(tokens)), (0, 0))
            yield np.pad(tokens, missing), np.pad(labels, missing, constant_values=IGNORED)

    def _nats_by_document(self, domain: str, batches: list[Any]) -> np.ndarray:
        rows, total = self._rows[domain], np.zeros(len(self._documents[domain]), np.float64)
        if batches:
            nats = np.concatenate([np.asarray(nats_B, np.float64) for nats_B in batches])[: len(rows.document)]
            np.add.at(total, rows.document, nats)
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
