"""What `run:RUN@STEP` and `hf:FOLDER` name on this machine, and whether that is still what it was. No JAX."""

import hashlib
import re
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.checkpoints import steps, whole
from olmo_hydra.tracking.documents import load_yaml
from olmo_hydra.tracking.files import MAX_TEXT, read
from olmo_hydra.tracking.run_dir import RunDir

IDENTITY = re.compile(r"-[0-9a-f]{8}$")  # at the end of a run directory's name
SAMPLE = 1 << 16  # bytes that are read at either end of a file of weights


def find_run(place: str, run_root: Path | None) -> tuple[RunDir, int | None]:
    """The run, and the step if one is named: `RUN`, `RUN@STEP`, or `RUN/checkpoints/STEP`.

    Args:
      place: RUN is the name of a run below `run_root`, with or without the 8 digits at its end, or a run directory.
      run_root: Where runs lie that are given by name.

    Raises:
      RequestError: There is no such run, there are several, or the step is no number.
    """
    folder = Path(place)
    if folder.name.isdecimal() and folder.parent.name == "checkpoints":
        return _run(folder.parent.parent, place, run_root), int(folder.name)
    run, at, step = place.rpartition("@")
    if not at or (folder / "config.yaml").is_file():
        return _run(folder, place, run_root), None
    if not step.isdecimal():
        raise RequestError("the step after @ is no whole number", key=place, instead=f"{run}@1000, or {run}")
    return _run(Path(run), place, run_root), int(step)


def whole_steps(run_dir: RunDir) -> list[int]:
    """The steps of a run's checkpoints that have all their files, in order. Hashes are compared where one is read."""
    return list(whole(run_dir.checkpoints))


def frozen(run_dir: RunDir) -> dict[str, Any]:
    """The content of a run's config.yaml, as data. Raises RequestError where it is none."""
    content = load_yaml(run_dir.config)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise RequestError("has no node `model`", where=str(run_dir.config))
    return content


def fingerprint(source: str, run_root: Path) -> str:
    """What a source of parameters is, whatever it is called and wherever it lies.

    A trained run is the name of its directory, which has its identity, and the step. A run that was written whole
    (imported, averaged) has no identity, so that its config.yaml, which says what it was made of, is added. A folder
    of Hugging Face's is its config.json and the beginning and the end of every file of weights.

    Args:
      source: `run:...` or `hf:...`, as `init.from`.
      run_root: Where runs lie that are given by name.

    Raises:
      RequestError: There is nothing there.
    """
    kind, _, place = source.partition(":")
    if kind == "hf":
        return f"hf {_digest_of_folder(Path(place))}"
    run_dir, step = find_run(place, run_root)
    there = steps(run_dir.checkpoints)
    if step is None and not there:
        raise RequestError("the run has no checkpoint yet", where=str(run_dir.path))
    name = f"{run_dir.path.resolve().name}@{there[-1] if step is None else step}"
    if any(row["event"] == "started" for row in run_dir.rows("events")):
        return name
    return f"{name} {hashlib.sha256(read(run_dir.config, MAX_TEXT) or b'').hexdigest()[:16]}"


def refuse_another_origin(source: str, run_root: Path, run_dir: RunDir) -> None:
    """Raises RequestError if a run that has begun would now begin from something else under the same name.

    A source that is gone changes nothing: the run has what it took from it.
    """
    origins = (row["init"] for row in run_dir.rows("events") if isinstance(row.get("init"), dict))
    began = next((origin.get("fingerprint") for origin in origins), None)
    if began is None:
        return
    try:
        now = fingerprint(source, run_root)
    except (RequestError, OSError):
        return
    if now != began:
        raise RequestError(
            f"is {now} now, and this run began from {began}",
            key="init.from",
            value=source,
            instead="run.tag=NAME for a run of its own",
        )


def _run(folder: Path, place: str, run_root: Path | None) -> RunDir:
    looked_for = ["a folder with config.json (Hugging Face)", "a run directory (config.yaml)"]
    if run_root is not None and len(folder.parts) == 1:
        named = sorted(path.parent for path in run_root.glob("*/config.yaml"))
        found = [path for path in named if path.name == folder.name]
        found = found or [path for path in named if IDENTITY.sub("", path.name) == folder.name]
        if len(found) == 1:
            return RunDir(found[0])
        if found:
            names = ", ".join(path.name for path in found)
            raise RequestError(f"several runs of {run_root} have this name: {names}", key=place, instead="one of them")
        looked_for.append(f"a run of that name in {run_root}")
    if (folder / "config.yaml").is_file():
        return RunDir(folder)
    raise RequestError(f"holds no weights: looked for {', '.join(looked_for)}", key=place)


def _digest_of_folder(folder: Path) -> str:
    total = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        total.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            total.update(opened.read(SAMPLE))
            opened.seek(max(size - SAMPLE, 0))
            total.update(opened.read(SAMPLE))
    return total.hexdigest()[:16]
