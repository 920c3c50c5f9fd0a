"""Whether two runs of one config are the same, byte for byte, and whether anything unfinished lies about."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
import yaml

from benchmarks.kills.job import PREPARED, STEPS, Job

UNFINISHED = re.compile(r".*\.partial|.*\.orbax-checkpoint-tmp.*|\.removed-.*|\..+\.[0-9]+")


def differences(job: Job, unbroken: Job) -> list[str]:
    """What differs between a run that was killed and one that was not; empty if nothing does."""
    run, other = job.view.run, unbroken.view.run
    if run is None or other is None:
        return ["there is no run directory"]
    found = [
        *(f"{name} differs" for name in ("metrics.jsonl", "evals.jsonl") if _bytes(run / name) != _bytes(other / name)),
        *_of_config(run, other),
        *_of_checkpoints(job, unbroken),
        *_of_cache(job.root / "cache", unbroken.root / "cache"),
        *(f"left behind: {path.relative_to(job.root)}" for path in _files(job.root) if UNFINISHED.fullmatch(path.name)),
    ]
    events = job.view.events()
    if events.count("finished") != 1:
        found.append(f"events end with {events[-3:]}")
    if job.recorded != sum(kind in ("started", "resumed") for kind in events):
        found.append(f"{job.recorded} beginnings were seen in the events, which have others now")
    starts = len(json.loads(_bytes(run / "provenance.json"))["starts"])
    if not job.recorded <= starts <= job.starts:
        found.append(f"provenance.json has {starts} starts, the events {job.recorded}, and there were {job.starts}")
    if job.view.stamp("report.html")[1] < job.view.stamp("events.jsonl")[1]:
        found.append("report.html is missing or older than the last event")
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _files(root: Path) -> list[Path]:
    """Everything of a root but what is not ours: the folder of temporary files, XLA's cache and W&B's runs."""
    return [
        path
        for path in root.rglob("*")
        if not {"tmp", "xla"} & set(path.relative_to(root).parts) and "run-" not in str(path.relative_to(root))
    ]


def _of_config(run: Path, other: Path) -> list[str]:
    left, right = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (run, other))
    for config in (left, right):
        del config["run"]["root"], config["tracking"]["wandb"]
    return [] if left == right else ["config.yaml differs"]


def _of_cache(cache: Path, other: Path) -> list[str]:
    """A packing is named by the time its file was written, so that only contents compare."""

    def hashed(root: Path) -> set[tuple[str, str]]:
        files = [path for folder in PREPARED for path in (root / folder).rglob("*") if path.is_file()]
        names = [path.relative_to(root) for path in files]
        shown = [str(name.parent if name.parts[0] == "packing" else name) for name in names]
        return {(name, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in zip(shown, files, strict=True)}

    return [f"cache/{name} differs" for name, _ in sorted(hashed(cache) ^ hashed(other))]


def _of_checkpoints(job: Job, unbroken: Job) -> list[str]:
    if job.view.steps() != unbroken.view.steps():
        return [f"checkpoints {sorted(job.view.steps())}, not {sorted(unbroken.view.steps())}"]
    found = []
    for step in sorted(unbroken.view.steps()):
        left, right = (_saved(it.view.run / "checkpoints" / str(step)) for it in (job, unbroken))  # type: ignore[operator]
        found += [
            f"checkpoint {step}: {name} differs" for name in sorted(left | right) if left.get(name) != right.get(name)
        ]
    last = json.loads(job.view.lines("metrics")[-1])
    return found if last["step"] == STEPS else [*found, f"the last row is of step {last['step']}"]


def _saved(place: Path) -> dict[str, Any]:
    """Every array of a checkpoint as dtype, shape and bytes, and what it says of the run and its data."""
    described = {name: (str(leaf.dtype), leaf.shape, leaf.tobytes()) for name, leaf in arrays_of(place).items()}
    return described | {item: json.loads((place / item / "metadata").read_text()) for item in ("data", "meta")}


def arrays_of(place: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, whatever devices wrote it; orbax itself wants to know on which it shall lie."""
    found = {}
    for item in ("state", "ledger"):
        tree = json.loads((place / item / "_METADATA").read_text())["tree_metadata"]
        for name in ("/".join(part["key"] for part in leaf["key_metadata"]) for leaf in tree.values()):
            database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{place / item}/"}}
            spec = {"driver": "zarr", "kvstore": {**database, "path": f"{name}/"}}
            found[name] = ts.open(spec, read=True, open=True).result().read().result()
    return found
