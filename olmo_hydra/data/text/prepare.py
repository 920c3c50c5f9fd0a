"""Prepares a corpus once: into the cache, from a config, or into a folder that is asked for."""

import dataclasses
import fcntl
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, TextConfig
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.data.corpus import MANIFEST, Corpus
from olmo_hydra.data.files.hashes import sha256_of_json
from olmo_hydra.data.files.once import untouched
from olmo_hydra.data.report import Report
from olmo_hydra.data.text.build import TEXTS, Settings, build_corpus, plan, texts_of
from olmo_hydra.data.text.sources.installed import installed
from olmo_hydra.data.tokenizers import bpe

# What decides how a corpus is read, not what is in it.
USE = {field.name for field in dataclasses.fields(DataConfig)} - {"name", "tokenizer"}
LOCK = ".lock"
OURS = re.compile(rf"{TEXTS}|[0-9a-f]{{16}}(\.parts)?|\{LOCK}")  # what is in a folder of unfinished parts
ALGORITHM = 2  # raise it when the same recipe and text would give other token files


def prepare(cfg: TextConfig, cache: Path, report: Report) -> Corpus:
    """Opens the corpus of a config, and prepares it first if `cache` does not hold it.

    A prepared corpus stays as it is: packages installed later, or edited text, do not change a run that resumes.

    Args:
      cfg: The data group. `seq_len` does not matter here.
      cache: Folder of prepared corpora, `<run.root>/cache/data`.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: A domain cannot be read or has no document on one side of the split, or `cache` cannot be written.
      RunFailed: A process that prepared a part of it has died.
    """
    settings = Settings(workers=cores())
    recipe = recipe_of(cfg, settings)
    folder = cache / f"{cfg.name}-{sha256_of_json([ALGORITHM, recipe])[:8]}"
    if not folder.exists() or _partial(folder).exists():  # who was killed after the renaming has left the parts
        with _writable(cache, "run.root", "run.root=<a folder you can write, with some space>"):
            _prepare(cfg, recipe, folder, settings, report)
    return Corpus(folder, in_cache=True)


def prepare_into(cfg: TextConfig, folder: Path, settings: Settings, report: Report) -> Corpus:
    """Prepares a corpus in `folder`, or opens it if it is the same one, of the same text, that is there already.

    Raises:
      RequestError: As `prepare`; or `folder` holds something else, or a corpus of the text as it was before.
      RunFailed: A process that prepared a part of it has died.
    """
    recipe = recipe_of(cfg, settings)
    for domain in recipe["domains"].values():
        if domain["source"] in ("files", "code") and domain["path"] is not None and domain["pattern"] is None:
            require(
                Path(domain["path"]) not in Path(os.path.realpath(folder)).parents,
                f"lies in {domain['path']}, which is read",
                key="--out",
                value=str(folder),
                instead="--out FOLDER, with a folder beside the text",
            )
    if not folder.exists() or (_partial(folder) / LOCK).exists():
        with _writable(folder.parent, "--out", "--out <a folder you can write, with some space>"):
            if _prepare(cfg, recipe, folder, settings, report):
                return Corpus(folder)
    if not (folder / MANIFEST).is_file():
        raise RequestError("is there, and is no corpus", key="--out", value=str(folder), instead="--out NEW_FOLDER")
    corpus = Corpus(folder)
    problem = None
    if (corpus.manifest["algorithm"], corpus.manifest["recipe"]) != (ALGORITHM, recipe):
        problem = "holds a corpus of other sources or settings"
    elif not is_of_its_text(cfg, corpus):
        problem = "holds a corpus of the text as it was: files have come, gone, or been written since"
    if problem is not None:
        raise RequestError(
            problem,
            key="--out",
            value=str(folder),
            where=str(folder / MANIFEST),
            instead=f"--out NEW_FOLDER, or rm -r {folder}",
        )
    return corpus


def is_of_its_text(cfg: TextConfig, corpus: Corpus) -> bool:
    """Whether no file has come, gone or been written since a corpus was prepared from it; False if nothing tells."""
    try:
        return corpus.manifest.get("texts") == texts_of(plan(cfg))
    except RequestError:  # what it was made of is not there any more
        return False


def recipe_of(cfg: TextConfig, settings: Settings) -> dict[str, Any]:
    """What decides the content of a corpus, as JSON values: its paths absolute, without what only decides its use.

    Raises:
      RequestError: A name cannot name a folder.
    """
    for key, name in [("data.name", cfg.name), *(("data.domains", domain) for domain in cfg.domains)]:
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) is not None,
            "must be 1 to 64 letters, digits, dots, dashes or underscores: it names files",
            key=key,
            value=name,
        )
    recipe = dataclasses.asdict(cfg)
    for use in USE:
        del recipe[use]
    for domain in recipe["domains"].values():
        if (path := domain["path"]) is not None:
            place = Path(path).expanduser()
            # A data set's name stays as it is.
            if domain["source"] != "huggingface" or Path(str(place).partition(":")[0]).exists():
                domain["path"] = os.path.realpath(place)  # which goes through a loop of links too
    if cfg.tokenizer.endswith(".json"):
        recipe["tokenizer"] = os.path.realpath(Path(cfg.tokenizer).expanduser())
        recipe["tokenizer_file"] = bpe.described(cfg.tokenizer)
    return recipe | settings.science()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _writable(folder: Path, key: str, instead: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of a report, not of a file
        raise
    except OSError as error:
        raise RequestError(
            f"cannot write the prepared data to {folder} ({error})",
            key=key,
            instead=f"{instead}; what was finished stays, and the same command continues",
        ) from error


def _partial(folder: Path) -> Path:
    """Where the parts of a corpus lie until it is whole; a kill just after that leaves them."""
    return folder.with_name(folder.name + ".partial")


def _prepare(cfg: TextConfig, recipe: dict[str, Any], folder: Path, settings: Settings, report: Report) -> bool:
    """Builds the corpus beside `folder` and renames it, while no other process does; False if one was faster.

    What is being built lies in `<folder>.partial`, under names that tell all that decides it, so that parts of
    something else are never taken for them. What is finished stays if the process is killed or a text cannot be read,
    and the next one continues.
    """
    partial = _partial(folder)
    with _alone_in(partial, report):
        if folder.exists():
            _remove(partial)
            return False
        origin = {
            "algorithm": ALGORITHM,
            "recipe": recipe,
            "python": platform.python_version(),
            "distributions": {name: distribution.version for name, distribution in installed().items()},
        }
        try:
            report(f"data: preparing {folder.name}, once, in {folder.parent}")
            build_corpus(cfg, origin, partial, settings, report).rename(folder)
        except RequestError:
            if any((partial / TEXTS).glob("*.read.json")):
                report(f"data: what was read stays in {partial}, and is not read again")
            else:
                _remove(partial)
            raise
        except KeyboardInterrupt:
            report("data: stopped; the same command continues")
            raise
        _remove(partial)
    return True


@contextmanager
def _alone_in(folder: Path, report: Report) -> Iterator[None]:
    """Makes a folder of unfinished parts, if there is none, and holds it while no other process does.

    Raises:
      RequestError: The folder is somebody else's.
    """
    # The system releases the lock of a process that dies, so that what it left behind is known to be abandoned.
    lock = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not lock.exists() and any(not OURS.fullmatch(path.name) for path in folder.iterdir()):
                raise RequestError(
                    "is in the way: unfinished parts would lie there, and it holds something else",
                    where=str(folder),
                    instead="another name for the corpus, or for that folder",
                )
            opened = os.fdopen(untouched(str(lock), os.O_WRONLY | os.O_CREAT), "w")
        except (FileNotFoundError, FileExistsError):  # who held it has removed the folder
            if not folder.parent.is_dir() or (os.path.lexists(folder) and not folder.is_dir()):
                raise
            continue
        with opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("data: another process is preparing the same data; waiting for it")
                fcntl.flock(opened, fcntl.LOCK_EX)
            # Who held it may have removed the file, and a third process may hold the one that is there now.
            if _is(lock, opened.fileno()):
                yield
                return


def _is(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(folder: Path) -> None:
    """Removes a folder of parts that this process holds, and nothing in it that is not ours; the lock last."""
    for path in folder.iterdir():
        if path.name != LOCK and OURS.fullmatch(path.name):
            shutil.rmtree(path)
    (folder / LOCK).unlink()
    with suppress(OSError):  # something else is in it, or another process has come
        folder.rmdir()
