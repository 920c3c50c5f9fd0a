"""Prepares a corpus once: into the cache, from a config, or into a folder that is asked for."""

import dataclasses
import fcntl
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, TextConfig
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.data.corpus import MANIFEST, Corpus
from olmo_hydra.data.files.hashes import sha256_of_json
from olmo_hydra.data.report import Report
from olmo_hydra.data.text.build import Settings, build_corpus
from olmo_hydra.data.text.sources.installed import installed

# What decides how a corpus is read, not what is in it.
USE = {field.name for field in dataclasses.fields(DataConfig)} - {"name", "tokenizer"}
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
    if not folder.exists():
        with _writable(cache, "run.root", "run.root=<a folder you can write, with some space>"):
            _prepare(cfg, recipe, folder, settings, report)
    return Corpus(folder)


def prepare_into(cfg: TextConfig, folder: Path, settings: Settings, report: Report) -> Corpus:
    """Prepares a corpus in `folder`, or opens it if it is the same one that is there already.

    Raises:
      RequestError: As `prepare`; or `folder` holds something else.
      RunFailed: A process that prepared a part of it has died.
    """
    recipe = recipe_of(cfg, settings)
    if not folder.exists():
        with _writable(folder.parent, "--out", "--out <a folder you can write, with some space>"):
            _prepare(cfg, recipe, folder, settings, report)
    if not (folder / MANIFEST).is_file():
        raise RequestError("is there, and is no corpus", key="--out", value=str(folder), instead="--out NEW_FOLDER")
    corpus = Corpus(folder)
    if (corpus.manifest["algorithm"], corpus.manifest["recipe"]) != (ALGORITHM, recipe):
        raise RequestError(
            "holds a corpus of other sources or settings",
            key="--out",
            value=str(folder),
            where=str(folder / MANIFEST),
            instead=f"--out NEW_FOLDER, or rm -r {folder}",
        )
    return corpus


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
        if domain["path"] is not None and "://" not in domain["path"] and not domain["path"].startswith("hf:"):
            domain["path"] = str(Path(domain["path"]).expanduser().resolve())
    if cfg.tokenizer.endswith(".json"):
        recipe["tokenizer"] = str(Path(cfg.tokenizer).expanduser().resolve())
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


def _prepare(cfg: TextConfig, recipe: dict[str, Any], folder: Path, settings: Settings, report: Report) -> None:
    """Builds the corpus beside `folder` and renames it, while no other process does.

    What is being built lies in a folder named by all that decides its parts, so that parts of something else are never
    taken for them. It stays if the process is killed, and the next one continues.
    """
    partial = folder.with_name(folder.name + ".partial")
    with _lock(partial, report):
        if folder.exists():  # another process was faster
            return
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
            shutil.rmtree(partial)
            raise
        except KeyboardInterrupt:
            report("data: stopped; the same command continues")
            raise
        shutil.rmtree(partial)


@contextmanager
def _lock(folder: Path, report: Report) -> Iterator[None]:
    # The system releases the lock of a process that dies, so that what it left behind is known to be abandoned.
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("data: another process is preparing the same data; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
