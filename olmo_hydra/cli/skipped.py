"""What the batches of skipped updates held, written where too many of them in a row end a run.

Who counts them: `olmo_hydra.train.skipped`; the page: `olmo_hydra.report.skipped`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from olmo_hydra.cli import run_data
from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.data.audit import trace
from olmo_hydra.data.instances.repetition import repeats
from olmo_hydra.data.opened import Data
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.run_dir import RunDir

Row = dict[str, Any]

SHOWN = 2048  # instances in all: reading more of them takes minutes, and nobody would
LEAST_SHOWN = 8  # instances of a batch
DOCUMENTS = 3  # of an instance
CHARACTERS = 400  # of a document


def in_progress(events: Sequence[Row], done: int, n_skipped: int) -> list[Row]:
    """The last `n_skipped` updates that were skipped, up to update `done`: what a resumed run is in the middle of."""
    return _skipped(events, 1, done)[-n_skipped:] if n_skipped else []


@contextmanager
def explained(run_dir: RunDir, data: Data, note: Callable[[str], None]) -> Iterator[None]:
    """Where skipped updates end the run, writes `skipped.json` and the page made of it, and notes where that is.

    That the data cannot be read any more, or the page not be written, is noted: it must not hide why the run ended.
    """
    try:
        yield
    except RunFailed as failure:
        if "first" in failure.fields:
            from olmo_hydra.report.skipped import write_skipped  # what it imports takes part of a second

            try:
                content = described(
                    run_dir.rows("events"), data, *(failure.fields[key] for key in ("first", "last", "checkpoint"))
                )
                replace(run_dir.skipped_batches, json.dumps(content).encode())
                note(f"what the batches of the skipped updates held: {write_skipped(run_dir)}")
            except (RequestError, OSError) as error:
                note(f"warning: what the batches of the skipped updates held cannot be shown: {error}")
        raise


def described(events: Sequence[Row], data: Data, first: int, last: int, checkpoint: int | None) -> Row:
    """The skipped updates from `first` to `last`: the event of each, and what is in the instances of its batch.

    All instances are named. Of each batch equally many are shown, the first in the batch's order: at least
    `LEAST_SHOWN`, and `SHOWN` of all batches if that is more.
    """
    skipped = _skipped(events, first, last)
    shown = max(SHOWN // len(skipped), LEAST_SHOWN)
    return {
        "first": first,
        "last": last,
        "checkpoint": checkpoint,
        "filtered": data.batches.cut.repetition_filter,
        "updates": [row | _batch(data, row["step"] - 1, shown) for row in skipped],
    }


def _batch(data: Data, n: int, shown: int) -> Row:
    batch = data.batches.batch(n)
    tokens_BT, text_B = batch.tokens_BT[:shown], batch.by_label_BL[:shown].sum(axis=1)
    held = batch.instances_B[:shown].tolist()
    repeats_B = repeats(tokens_BT, text_B)
    return {
        "epoch": batch.epoch,
        "row": batch.row,
        "tokens": dict(zip(data.batches.labels, batch.by_label_BL.sum(axis=0).tolist(), strict=True)),
        "targets": int(np.count_nonzero(batch.labels_BT >= 0)),
        "shown": [
            {"instance": instance, "repeats": bool(repeats_B[b]), **_documents(data, instance)}
            for b, instance in enumerate(held)
        ],
    }


def _documents(data: Data, instance: int) -> Row:
    pieces = trace.pieces(data.source, data.files, instance, data.tokenizer.eos)
    return {
        "n_documents": len(pieces),
        "documents": [
            run_data.described(data, piece) | {"text": trace.lines(piece, data.files, data.tokenizer, CHARACTERS)}
            for piece in pieces[:DOCUMENTS]
        ],
    }


def _skipped(events: Sequence[Row], first: int, last: int) -> list[Row]:
    """The events `skipped` of some updates by step, without their time; what was told last of an update counts."""
    by_step = {
        event["step"]: {key: value for key, value in event.items() if key not in ("time", "event")}
        for event in events
        if event["event"] == "skipped" and first <= event["step"] <= last
    }
    return [by_step[step] for step in sorted(by_step)]
