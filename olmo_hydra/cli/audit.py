"""`olmo-hydra data audit`: what the processes of a run will read, simulated with the run's own batches."""

import argparse
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError, RunFailed, require
from olmo_hydra.config.identity import run_name
from olmo_hydra.data.audit.audit import facts, masked
from olmo_hydra.data.audit.consumption import Epoch, simulate
from olmo_hydra.data.audit.picture import Bar, picture
from olmo_hydra.data.opened import Data, open_data

EPOCHS = 4  # simulated if no number is given
ROWS = 40  # of a table in text; JSON has all


def run(parsed: argparse.Namespace) -> None:
    """Simulates, and prints what was found.

    Raises:
      RequestError: The processes do not divide the batch, the picture cannot be written, ...
      RunFailed: Something is read twice, or never, that should be read once.
    """
    config = compose(parsed.overrides)
    batch, steps = config.train.global_batch, config.train.steps
    assert steps is not None
    require(
        parsed.processes >= 1 and batch % parsed.processes == 0,
        f"does not divide train.global_batch={batch}: every process reads as many instances of a batch",
        key="--processes",
        value=parsed.processes,
        instead=f"one of {', '.join(str(n) for n in range(1, batch + 1) if batch % n == 0)}"[:100],
    )
    require(parsed.epochs is None or parsed.epochs >= 1, "must be at least 1", key="--epochs", value=parsed.epochs)
    data = open_data(config, Path(config.run.root) / "cache", lambda line: print(line, file=sys.stderr))
    of_run = -(-steps // data.sampler.batches_per_epoch)
    epochs = _simulated(data, parsed.epochs or min(of_run, EPOCHS), steps, parsed.processes)
    found = {"run": run_name(config), **facts(data, epochs, steps=steps, processes=parsed.processes), "masked": None}
    if config.data.repetition_filter:
        found["masked"] = masked(data.batches, everything=parsed.all)._asdict()
    if parsed.picture is not None:
        _draw(parsed.picture, found, epochs)
    if parsed.json:
        print(json.dumps(found, allow_nan=False))
    else:
        show(found)
    if found["findings"]:
        raise RunFailed("\n".join(["the processes do not read every instance once an epoch", *found["findings"]]))


def _simulated(data: Data, n_epochs: int, steps: int, processes: int) -> list[Epoch]:
    epochs = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for epoch in range(1, n_epochs + 1):
            task = progress.add_task(f"epoch {epoch}", total=1.0)
            simulated = simulate(
                data.batches,
                epoch,
                steps=steps,
                processes=processes,
                progress=partial(_progressed, progress, task),
            )
            epochs.append(simulated)
    return epochs


def _progressed(progress: Progress, task: TaskID, share: float) -> None:
    progress.update(task, completed=share)


def show(found: dict[str, Any]) -> None:
    """The facts for people: the run as a whole, and the epoch with most repeats by label and by file."""
    ends, batches = found["run_ends"], found["batches_per_epoch"]
    room = found["instances"] * found["seq_len"]
    lines = [
        ("run", found["run"]),
        ("corpus", f"{found['tokens']:,} tokens in {_counted(found['files'], 'file')}"),
        ("instances", f"{found['instances']:,} of {found['seq_len']:,} tokens"),
        ("dropped", f"{found['dropped_tokens']:,} tokens of the files are in no instance"),
        ("padding", f"{found['padding_tokens']:,} tokens, {found['padding_tokens'] / room:.1%} of the instances"),
        ("epoch", f"{_counted(batches, 'batch')} of {_counted(found['global_batch'], 'instance')}"),
        (
            "",
            f"{_counted(found['tail_instances'], 'instance')} ({found['tail_tokens']:,} tokens) at its end in no batch",
        ),
        ("horizon", f"{_counted(found['steps'], 'batch')}, {found['run_epochs']:.4g} epochs"),
        ("", f"ends in epoch {ends['epoch']:,} with batch {ends['batch']:,} of {batches:,}"),
    ]
    if found["masked"] is not None:
        lines += _filtered(found["masked"], batches * found["global_batch"], found["seq_len"])
    shown = max(found["epochs"], key=lambda epoch: epoch["reads"] - epoch["distinct"])
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, text in lines:
        console.print(f"{name:11}{text}")
    for title, rows in (("label", list(shown["labels"].items())), ("file", list(_by_file(shown["parts"])))):
        if title == "label" or len(rows) > 1:
            console.print()
            console.print(_table(f"{title}, epoch {shown['epoch']}", rows, shown["all"]), soft_wrap=False)
    console.print()
    for epoch in found["epochs"]:
        console.print(_verdict(epoch, found["processes"]))
    if ends["epoch"] > len(found["epochs"]):
        console.print(f"and {ends['epoch'] - len(found['epochs']):,} more of the run: --epochs {ends['epoch']}")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"


def _filtered(masked: dict[str, Any], instances: int, seq_len: int) -> list[tuple[str, str]]:
    share, error = (masked[key] / (instances * seq_len) for key in ("tokens", "standard_error"))
    if masked["looked_at"] == instances:
        how = f"all {instances:,} instances of an epoch were looked at"
    else:
        how = f"standard error {error:.3%}, from {masked['looked_at']:,} of {instances:,} instances; --all reads all"
    return [("filter", f"masks {masked['tokens']:,.0f} tokens ({share:.3%}) of an epoch"), ("", how)]


def _by_file(parts: list[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    for part in parts:
        first, *others = part["files"]
        yield f"{first} + {len(others)} more" if others else first, part


def _table(title: str, rows: list[tuple[str, dict[str, Any]]], total: dict[str, Any]) -> Table:
    table = Table(title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"
    for name in ("instances", "once", "never", "repeated", "passes", "run reads"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = sorted(rows, key=lambda row: (-row[1]["repeated"], -row[1]["instances"]))
    shown = rows if len(rows) <= ROWS else rows[: ROWS - 1]
    for name, counts in [*shown, ("all", total)]:
        numbers = (f"{counts[key]:,}" for key in ("instances", "once", "never", "repeated"))
        passes = "-" if counts["passes"] is None else f"{counts['passes']:.2f}"
        table.add_row(name, *numbers, passes, f"{counts['run_reads']:,}")
    if len(rows) > len(shown):
        table.caption = f"and {len(rows) - len(shown):,} more, which --json shows"
        table.caption_justify = "left"
    return table


def _verdict(epoch: dict[str, Any], processes: int) -> str:
    number, repeats = epoch["epoch"], epoch["reads"] - epoch["distinct"]
    who = "one process reads" if processes == 1 else f"{processes:,} processes read"
    if repeats or epoch["differing_batches"]:
        return f"epoch {number}: {who} {epoch['distinct']:,} instances, and {repeats:,} times one read before"
    return f"epoch {number}: {who} {epoch['distinct']:,} instances, each exactly once"


def _draw(file: Path, found: dict[str, Any], epochs: list[Epoch]) -> None:
    worst = max(range(len(epochs)), key=lambda i: epochs[i].reads - epochs[i].distinct)
    facts, epoch = found["epochs"][worst], epochs[worst]
    bars = []
    for label, counts in facts["labels"].items():
        rest = counts["file_tokens"] / found["seq_len"] - counts["instances"]
        dropped = max(rest, 0.0) if found["padding_tokens"] == 0 else 0.0
        bars.append(Bar(label, counts["once"], counts["never"], counts["repeated"], dropped))
    reads_K = epoch.batches_K * found["global_batch"] / found["processes"]
    text = picture(
        f"{found['run']}, epoch {facts['epoch']}: {found['instances']:,} instances",
        _verdict(facts, found["processes"]),
        bars,
        np.minimum(epoch.repeats_KN / reads_K[:, None], 1.0),
    )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"cannot be written: {error.strerror}",
            key="--picture",
            value=file,
            instead="a file in a folder that is there",
        ) from error
