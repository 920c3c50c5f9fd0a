"""What an audit says of a run's data: facts as JSON values, and what is wrong in words."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from olmo_hydra.data.audit.consumption import Epoch
from olmo_hydra.data.loader import Batches
from olmo_hydra.data.opened import Data
from olmo_hydra.data.sampler import Sampler

FILTER_SAMPLE = 4096  # instances that are read to estimate what the repetition filter takes out


def facts(data: Data, epochs: Sequence[Epoch], *, steps: int, processes: int) -> dict[str, Any]:
    """All that was found.

    Args:
      data: Of the run.
      epochs: What its processes read of some.
      steps: Batches of the run.
      processes: How many read.
    """
    sampler, source, seq_len = data.sampler, data.source, data.batches.cut.seq_len
    batches = sampler.batches_per_epoch
    tail = len(source) - batches * sampler.global_batch
    last = sampler.place(steps - 1)
    wrong = [line for found in epochs for line in findings(sampler, found, processes)]
    return {
        "files": len(data.files),
        "tokens": sum(file.n_tokens for file in data.files),
        "seq_len": seq_len,
        "instances": len(source),
        "dropped_tokens": source.dropped,
        "padding_tokens": source.padding,
        "global_batch": sampler.global_batch,
        "batches_per_epoch": batches,
        "tail_instances": tail,
        "tail_tokens": tail * seq_len,
        "steps": steps,
        "run_epochs": steps / batches,
        "run_ends": {"epoch": last.epoch, "batch": last.row + 1},
        "processes": processes,
        "is_partition": not wrong,
        "findings": wrong,
        "epochs": [_epoch(data, found) for found in epochs],
    }


def _epoch(data: Data, found: Epoch) -> dict[str, Any]:
    parts = data.source.parts
    labels = [" + ".join(dict.fromkeys(data.files[i].label for i in part.files)) for part in parts]
    by_label: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        by_label.setdefault(label, []).append(i)
    return {
        "epoch": found.epoch,
        "reads": found.reads,
        "distinct": found.distinct,
        "differing_batches": found.differing,
        "all": _counts(data, found, range(len(parts))),
        "labels": {label: _counts(data, found, numbers) for label, numbers in by_label.items()},
        "parts": [
            {"files": [data.files[file].name for file in part.files], "label": labels[i], **_counts(data, found, [i])}
            for i, part in enumerate(parts)
        ],
    }


def _counts(data: Data, found: Epoch, numbers: Sequence[int]) -> dict[str, Any]:
    """Of some parts: their instances in the epoch, reads of the run in it, and passes over the tokens of their files.

    A file that is listed several times is there once, so that passes are the repetition that is intended. They are not
    known of parts with padding.
    """
    parts = [data.source.parts[i] for i in numbers]
    instances = sum(part.size for part in parts)
    files = {(file.path, file.n_tokens) for part in parts for file in (data.files[i] for i in part.files)}
    tokens = sum(n_tokens for _, n_tokens in files)
    passes = instances * data.batches.cut.seq_len / tokens if tokens else 0.0
    return {
        "instances": instances,
        "once": int(found.once_P[numbers].sum()),
        "never": int(found.never_P[numbers].sum()),
        "repeated": int(found.repeated_P[numbers].sum()),
        "run_reads": int(found.run_reads_P[numbers].sum()),
        "file_tokens": tokens,
        "passes": None if data.source.padding else passes,
    }


def findings(sampler: Sampler, found: Epoch, processes: int) -> list[str]:
    """What is wrong with an epoch: what, how much, and the likely cause. Nothing if the processes partition it."""
    n, batches, global_batch = sampler.n_instances, sampler.batches_per_epoch, sampler.global_batch
    lines = []
    repeats = found.reads - found.distinct
    if repeats:
        lines.append(
            f"epoch {found.epoch}: {repeats:,} of {found.reads:,} reads ({repeats / found.reads:.1%}) are of instances "
            f"that had been read before, {found.distinct / n:.1%} of {n:,} are read at all; {_cause(found, processes)}"
        )
    missing = batches * global_batch - found.distinct
    if missing > 0 and not repeats:
        lines.append(
            f"epoch {found.epoch}: {missing:,} instances of its batches are read by no process: a batch has "
            f"{global_batch:,}, and the processes read {found.reads // batches:,} of it"
        )
    if found.differing:
        lines.append(
            f"epoch {found.epoch}: {found.differing:,} of {batches:,} batches, from {found.first_differing:,} on, "
            "hold other instances than with one process: what an update reads depends on how many there are"
        )
    return lines


def _cause(found: Epoch, processes: int) -> str:
    share = found.distinct / found.reads
    spread = 2 / found.reads**0.5  # of that share from seed to seed, and more
    once_more = 1 - (1 - 1 / processes) ** processes
    if len(set(found.widths_N)) > 1:
        return f"the processes read {', '.join(map(str, found.widths_N))} instances of a batch"
    if processes > 1 and abs(share - 1 / processes) < 0.01 / processes:
        return f"every process reads all that the {processes} should share: the data is not sharded"
    if processes > 1 and abs(share - once_more) < spread:
        return (
            f"{share:.1%} of the reads are of distinct instances, and {processes} processes that shard twice leave "
            f"1-(1-1/{processes})^{processes} = {once_more:.1%}: the sampler gives each process its share, and a share "
            "of that is taken again"
        )
    if abs(share - (1 - np.exp(-1))) < spread:
        return f"{share:.1%} of the reads are of distinct instances, as in an order that is drawn with replacement"
    return "the order is no permutation, or batches are given out twice"


class Masked(NamedTuple):
    """What the repetition filter takes out of an epoch.

    Of `looked_at` instances it caught `caught`; in the whole epoch that is `tokens` tokens, give or take
    `standard_error` of them: 0 where all were looked at.
    """

    looked_at: int
    caught: int
    tokens: float
    standard_error: float


def masked(batches: Batches, *, everything: bool = False) -> Masked:
    """Reads batches of the first epoch, evenly spaced, and asks what the filter did. Raises what reading raises.

    Since the order is random, so is this sample; its standard error is that of a mean without replacement.
    """
    n, global_batch = batches.sampler.batches_per_epoch, batches.sampler.global_batch
    looked = n if everything else min(n, -(-FILTER_SAMPLE // global_batch))
    read = (batches.batch(row) for row in np.linspace(0, n - 1, looked, dtype=np.int64).tolist())
    tokens = np.concatenate([(batch.by_label_BL.sum(axis=1) * batch.masked_B) for batch in read]).astype(np.float64)
    instances = n * global_batch
    spread = tokens.std(ddof=1) / len(tokens) ** 0.5 if len(tokens) > 1 else 0.0
    left_out = (1 - len(tokens) / instances) ** 0.5
    return Masked(len(tokens), int(np.count_nonzero(tokens)), tokens.mean() * instances, instances * spread * left_out)
