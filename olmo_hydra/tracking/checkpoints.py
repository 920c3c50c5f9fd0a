"""Which checkpoints a run has, and whether they are what was written: each has a manifest with hashes. No JAX.

A checkpoint is a folder named by its step, with `manifest.json` in it. The manifest is written last and the folder is
renamed to its step after it, so that a folder of that name without a manifest is a damaged one. Saving and restoring:
`olmo_hydra.train.checkpoint`.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.documents import load_json
from olmo_hydra.tracking.files import open_to_read, replace, sync_folder

MANIFEST = "manifest.json"
FORMAT = 1
STEP = re.compile(r"0|[1-9][0-9]{0,17}")
REMAINS = re.compile(r"[0-9]+\.orbax-checkpoint-tmp.*|\.removed-[0-9]+(-[0-9]+)?")
# Orbax writes them once more after the manifest, and no restore reads them.
UNLISTED = frozenset({MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt"})
THREADS = min(8, os.cpu_count() or 1)  # that hash: a disk or a network file system is busy with fewer


class Kind(Enum):
    """Whether a checkpoint may be removed once there is a newer one: it says so itself, in its manifest."""

    landmark = "landmark"  # never
    permanent = "permanent"  # where `checkpoint.keep` says so
    ephemeral = "ephemeral"  # always


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself: its files by their path in it, each with bytes and sha256."""

    step: int
    kind: Kind
    files: dict[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True)
class Damage:
    """One fault of a checkpoint: the file, by its path in it ("" for the folder itself), and what it has."""

    step: int
    file: str
    why: str

    def __str__(self) -> str:
        return f"checkpoint {self.step} is damaged: {self.file or 'its folder'} {self.why}"


class _Fault(Exception):
    """(file, why), on the way to a `Damage`."""


def steps(folder: Path) -> list[int]:
    """The steps that something in the folder is named by, in order, whole or not."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if STEP.fullmatch(name))


def whole(folder: Path) -> dict[int, Manifest]:
    """The checkpoints that have a manifest and every file of it, in its size, by step, in order. Reads no hashes."""
    found = {}
    for step in steps(folder):
        try:
            manifest = _manifest(folder / str(step))
            _find(folder / str(step), manifest.files)
        except _Fault:
            continue
        found[step] = manifest
    return found


def damage(place: Path, below: str = "") -> Damage | None:
    """Compares a checkpoint, or the files whose paths begin with `below`, with its manifest, hashes included.

    Files that the manifest does not list are ignored, unless they are links and the like.
    """
    try:
        files = {file: about for file, about in _manifest(place).files.items() if file.startswith(below)}
        _find(place, files)
        _refuse_irregular(place)
        with _hashing() as each:
            unchanged = each(lambda file: _unchanged(place, file, files[file][1]), files)
            for file, is_unchanged in zip(files, unchanged, strict=True):
                if not is_unchanged:
                    raise _Fault(file, "has other content than was written (sha256)")
    except _Fault as fault:
        return Damage(int(place.name), *fault.args)
    return None


def write_manifest(place: Path, step: int, kind: Kind) -> None:
    """Writes the manifest of the files in `place`, after forcing each, and every folder, to disk."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    names = [file.relative_to(place).as_posix() for file in files]
    listed = [name for name in names if name not in UNLISTED]
    with _hashing() as each:
        about = dict(zip(listed, each(lambda name: _kept(place / name), listed), strict=True))
    for path in [path for path in place.rglob("*") if path.is_dir()]:
        sync_folder(path)
    described = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in about.items()}
    _write(place, {"format": FORMAT, "step": step, "kind": kind.value, "files": described})


def make_permanent(place: Path) -> None:
    """Has an ephemeral checkpoint say that it is permanent."""
    manifest = load_json(place / MANIFEST)
    if Kind(manifest["kind"]) is Kind.ephemeral:
        del manifest["sha256"]
        _write(place, manifest | {"kind": Kind.permanent.value})


def set_aside(place: Path, why: str) -> Path:
    """Renames a checkpoint to `<step>.<why>`, with a number after it where that exists. Returns its new place."""
    return _renamed(place, f"{place.name}.{why}")


def removed(place: Path) -> Path:
    """Takes a checkpoint's number from it, so that a kill while its files go leaves nothing half under that number.

    Returns where it is, for `erase`.
    """
    return _renamed(place, f".removed-{place.name}")


def remains(folder: Path) -> list[Path]:
    """What killed processes left of checkpoints that were being written, or removed. Only for the run's writer."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if REMAINS.fullmatch(path.name)]


def erase(path: Path) -> None:
    """Removes remains, as far as that is possible. A link goes, not what it names."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _renamed(place: Path, name: str) -> Path:
    """Gives a folder a name that nothing has yet: `name`, or that with a number after it."""
    free, number = place.with_name(name), 1
    while os.path.lexists(free):
        number += 1
        free = place.with_name(f"{name}-{number}")
    place.rename(free)
    sync_folder(place.parent)
    return free


def _write(place: Path, content: dict[str, Any]) -> None:
    replace(place / MANIFEST, json.dumps(content | {"sha256": _digest(content)}, indent=0).encode())


def _manifest(place: Path) -> Manifest:
    if place.is_symlink() or not place.is_dir():
        raise _Fault("", "is a link, or no folder: not a checkpoint of this run")
    try:
        said = load_json(place / MANIFEST)
    except RequestError as error:
        raise _Fault(MANIFEST, error.problem) from error
    if said is None:
        raise _Fault(MANIFEST, "is missing")
    try:
        sha256 = said.pop("sha256")
        version, step, kind = said["format"], said["step"], said["kind"]
        unchanged = sha256 == _digest(said)
        if unchanged and version == FORMAT:
            files = {name: (int(about["bytes"]), str(about["sha256"])) for name, about in said["files"].items()}
            _ = [name.encode() for name in files]  # what is no UTF-8 is no name of ours
            manifest = Manifest(int(step), Kind(kind), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Fault(MANIFEST, f"cannot be read: {type(error).__name__}") from error
    if not unchanged:
        raise _Fault(MANIFEST, "has other content than was written (sha256)")
    if version != FORMAT:
        raise _Fault(MANIFEST, f"has format {version!r}, and this program knows {FORMAT}")
    if str(manifest.step) != place.name:
        raise _Fault(MANIFEST, f"is of checkpoint {manifest.step}")
    return manifest


def _find(place: Path, files: dict[str, tuple[int, str]]) -> None:
    """Asks the file system for every file and its size."""
    root = os.path.realpath(place)
    for name, (size, _) in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or str(path) != name:
            raise _Fault(MANIFEST, f"names a file that is not in the checkpoint: {name!r}")
        try:
            found = os.lstat(place / name)
        except FileNotFoundError:
            raise _Fault(name, "is missing") from None
        except OSError as error:
            raise _Fault(name, f"cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode) or os.path.realpath(place / name) != os.path.join(root, name):
            raise _Fault(name, "is a link, or no file")
        if found.st_size != size:
            raise _Fault(name, f"has {found.st_size:,} bytes, not {size:,}")


def _refuse_irregular(place: Path) -> None:
    """Also of files that no manifest lists: who reads arrays opens what an index names, and would wait for a pipe."""
    for folder, folders, names in os.walk(place):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if stat.S_IFMT(os.lstat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise _Fault(path.relative_to(place).as_posix(), "is a link, or no file")


def _unchanged(place: Path, name: str, sha256: str) -> bool:
    try:
        file = open_to_read(place / name)
        if file is None:
            raise _Fault(name, "is missing")
        with file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except RequestError as error:
        raise _Fault(name, error.problem) from error
    except OSError as error:
        raise _Fault(name, f"cannot be read: {error.strerror}") from error


def _kept(path: Path) -> tuple[int, str]:
    """Bytes and sha256 of a file, which is on disk then."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), sha256


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _hashing() -> Iterator[Callable[..., Iterable[Any]]]:
    """`map` on threads: hashlib lets go of the interpreter. What has not begun when the block ends is dropped."""
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hash")
    try:
        yield threads.map
    finally:
        threads.shutdown(cancel_futures=True)
