"""The data of a run, opened again from its directory: what an update read, and which updates read a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.frozen import frozen_data
from olmo_hydra.config.identity import digest
from olmo_hydra.config.root import Config
from olmo_hydra.config.suggest import choices
from olmo_hydra.data.audit import trace
from olmo_hydra.data.fingerprint import differences
from olmo_hydra.data.instances.kinds import Span
from olmo_hydra.data.opened import Data, open_data
from olmo_hydra.data.report import Report
from olmo_hydra.interop.model_node import model_config
from olmo_hydra.interop.places import find_run, frozen, whole_steps
from olmo_hydra.tracking import history
from olmo_hydra.tracking.documents import as_written, load_json
from olmo_hydra.tracking.history import Stretch
from olmo_hydra.tracking.run_dir import RunDir

PLACES = 100  # of a text, after which the search ends
CHARACTERS = 200  # shown of a document


@dataclass(frozen=True)
class Run:
    """A run and its data.

    `done` updates have left a row, the state after update `saved` is the newest checkpoint. `elsewhere` are the updates
    that read, or will read, other data than what is opened, which says nothing of them.
    """

    directory: RunDir
    data: Data
    steps: int
    done: int
    saved: int
    elsewhere: list[Stretch]


def open_run(place: str, root: Path, report: Report) -> Run:
    """Opens the data that a run's frozen config names.

    Args:
      place: A run directory, or the name of a run below `root`.
      root: Where runs lie that are given by name.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: There is no such run, its data is gone, or is not what any of its updates read.
    """
    try:
        directory, _ = find_run(place, root)
    except RequestError as error:
        if error.instead:  # several runs have this name
            raise
        raise RequestError(
            f"no run directory is there, nor a run of that name in {root}",
            key=place,
            instead="olmo-hydra runs FOLDER lists those of a run.root",
        ) from error
    content = frozen(directory)
    of_data, of_train = frozen_data(content, str(directory.config))
    config = Config(data=of_data, train=of_train, model=model_config(content["model"], str(directory.config)))
    data = open_data(config, directory.path.absolute().parent / "cache", report)
    elsewhere = _elsewhere(directory, data)
    steps, metrics = whole_steps(directory), directory.rows("metrics")
    saved = steps[-1] if steps else 0
    assert of_train.steps is not None
    return Run(directory, data, of_train.steps, max(saved, metrics[-1]["step"] if metrics else 0), saved, elsewhere)


def _elsewhere(directory: RunDir, data: Data) -> list[Stretch]:
    """The updates of other data. Raises RequestError, with what the newest checkpoint differs in, if that is all."""
    starts = history.starts_of(directory)
    read = history.stretches(starts, "fingerprint")
    others = [stretch for stretch in read if stretch.digest != digest(data.fingerprint)]
    if not starts or len(others) < len(read):
        return others
    saved = [directory.checkpoints / str(step) / "data" / "metadata" for step in whole_steps(directory)]
    known = load_json(saved[-1]) if saved else None
    with as_written(directory.path, "a comparison of data"):
        lines = [] if known is None else differences(known["fingerprint"], data.fingerprint)
    raise RequestError(
        "\n  ".join(["its data is not what the run read:", *(lines or ["another fingerprint than at its last start"])]),
        key=directory.path.name,
        where=str(directory.provenance),
        instead=f"the data as it was; the run was started in {starts[-1]['folder']}",
    )


def _refuse_elsewhere(run: Run, step: int) -> None:
    for stretch in run.elsewhere:
        if stretch.holds(step):
            raise RequestError(
                "\n  ".join([f"updates {stretch} read other data than is here:", *_exchanges(run)]),
                key="--step",
                value=step,
                where=str(run.directory.events),
                instead="the data as it was then",
            )


def _exchanges(run: Run) -> list[str]:
    """What the run's data came to differ in, and when."""
    told = history.changes(history.starts_of(run.directory), run.directory.rows("events"), "fingerprint")
    return [f"after update {event['step']:,}: {'; '.join(event['differences'])}" for event in told]


def batch_of(run: Run, step: int, instance: int | None, n_documents: int) -> dict[str, Any]:
    """What update `step` read: its instances, and the first documents of each.

    Raises:
      RequestError: It is past the horizon, or read other data than what is opened.
    """
    require(
        1 <= step <= run.steps,
        f"the run has updates 1 to {run.steps:,}; update n reads global batch n - 1",
        key="--step",
        value=step,
        instead=f"--step {min(max(step, 1), run.steps)}",
    )
    _refuse_elsewhere(run, step)
    batch = run.data.batches.batch(step - 1)
    shown = list(range(len(batch.instances_B)))
    if instance is not None:
        shown = [b for b in shown if batch.instances_B[b] == instance]
        if not shown:
            held = choices(map(str, batch.instances_B.tolist()))
            raise RequestError(f"is not in the batch of update {step}", key="--instance", value=instance, instead=held)
    return {
        "run": run.directory.path.name,
        "step": step,
        "epoch": batch.epoch,
        "batch": batch.row + 1,
        "batches_per_epoch": run.data.sampler.batches_per_epoch,
        "state": _state(run, step),
        "global_batch": len(batch.instances_B),
        "instances": [
            {
                "instance": int(batch.instances_B[b]),
                "row": b,
                "masked": bool(batch.masked_B[b]),
                **_documents(run.data, int(batch.instances_B[b]), n_documents),
            }
            for b in shown
        ],
    }


def _documents(data: Data, instance: int, n_documents: int) -> dict[str, Any]:
    pieces = trace.pieces(data.source, data.files, instance, data.tokenizer.eos)
    return {
        "n_documents": len(pieces),
        "documents": [
            described(data, piece) | {"text": trace.excerpt(piece, data.files, data.tokenizer, CHARACTERS)}
            for piece in pieces[:n_documents]
        ],
    }


def described(data: Data, piece: Span) -> dict[str, Any]:
    """Where a piece of text stands, and the name of its document if there is an index of them."""
    file = data.files[piece.file]
    names = trace.names_of(file)
    return {
        "file": file.name,
        "label": file.label,
        "offset": piece.start,
        "tokens": piece.length,
        "document": names.at(piece.start) if names else None,
    }


def reads_of(run: Run, places: Sequence[Span]) -> dict[str, Any]:
    """Which instances hold tokens of some places, and which updates read them, in every epoch the run has begun."""
    held = [run.data.source.holding(place) for place in places]
    updates = updates_of(run, sorted({instance for instances in held for instance in instances}))
    return _found(run) | {
        "places": [
            described(run.data, place) | {"instances": [updates[instance] for instance in instances]}
            for place, instances in zip(places, held, strict=True)
        ],
    }


def reads_of_instance(run: Run, instance: int) -> dict[str, Any]:
    """As `reads_of`, of a whole instance."""
    n = len(run.data.source)
    require(0 <= instance < n, f"there are instances 0 to {n - 1:,}", key="--instance", value=instance)
    spans, updates = run.data.source.spans(instance), updates_of(run, [instance])[instance]
    return _found(run) | {"places": [described(run.data, span) | {"instances": [updates]} for span in spans]}


def updates_of(run: Run, instances: Sequence[int]) -> dict[int, dict[str, Any]]:
    """By instance: for each epoch the updates that read it. None in an epoch where it is in the tail."""
    found: dict[int, dict[str, Any]] = {i: {"instance": i, "epochs": []} for i in instances}
    for epoch in range(1, run.data.sampler.place(max(run.done, 1) - 1).epoch + 1):
        for instance, batches in trace.batches_with(run.data.batches, instances, epoch).items():
            updates = [{"step": n + 1, "state": _state(run, n + 1)} for n in batches]
            found[instance]["epochs"].append({"epoch": epoch, "updates": updates})
    return found


def places_with(run: Run, text: str, file: str | None) -> tuple[list[Span], bool]:
    """Where a text stands, and whether that is all: the search ends after some places."""
    files = range(len(run.data.files)) if file is None else files_of(run, file)
    found = (place for number in files for place in trace.containing(run.data.files, number, text, run.data.tokenizer))
    places = list(islice(found, PLACES + 1))
    return places[:PLACES], len(places) <= PLACES


def places_at(run: Run, file: str, offset: int) -> list[Span]:
    """A token of a file, as often as the file is listed. Raises RequestError where there is none."""
    files = files_of(run, file)
    n_tokens = run.data.files[files[0]].n_tokens
    require(0 <= offset < n_tokens, f"the file has tokens 0 to {n_tokens - 1}", key="--offset", value=offset)
    return [Span(number, offset, 1) for number in files]


def files_of(run: Run, name: str) -> list[int]:
    """The numbers of the token file of a name, or that ends so. Raises RequestError where none does, or several."""
    names = [file.name for file in run.data.files]
    found = [i for i, one in enumerate(names) if one == name]
    found = found or [i for i, one in enumerate(names) if one.endswith(name)]
    different = list(dict.fromkeys(names[i] for i in found))
    if len(different) != 1:
        raise RequestError(
            f"{len(different)} token files of the run are called so, or end so",
            key="--file",
            value=name,
            instead=f"one of {choices(different or names)}",
        )
    return found


def _found(run: Run) -> dict[str, Any]:
    updates = [[stretch.first, stretch.last] for stretch in run.elsewhere]
    return {
        "run": run.directory.path.name,
        "steps": run.steps,
        "done": run.done,
        "saved": run.saved,
        "other_data": {"updates": updates, "because": _exchanges(run)} if updates else None,
    }


def _state(run: Run, step: int) -> str:
    if any(stretch.holds(step) for stretch in run.elsewhere):
        return "of other data"
    if step <= run.saved:
        return "read, saved"
    if step <= run.done:
        return "read, not saved"
    return "to come" if step <= run.steps else "past the horizon"
