"""Prepares a corpus once: reads the domains, splits them by document, writes token files and a manifest."""

import dataclasses
import fcntl
import hashlib
import json
import platform
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, TextConfig
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.data.corpus import MANIFEST, SPLITS, Corpus, cut, digest, split_point, token_file, totals
from olmo_hydra.data.text.sources import Document, LeftOut, documents
from olmo_hydra.data.text.sources.installed import installed
from olmo_hydra.data.text.sources.registry import NOT_INSTALLED, NOT_UTF8, SEPARATOR
from olmo_hydra.data.tokenizer import Tokenizer, build

# What decides how a corpus is read, not what is in it.
USE = {field.name for field in dataclasses.fields(DataConfig)} - {"name", "tokenizer"}
ALGORITHM = 1  # raise it when the same recipe and text would give other token files

Report = Callable[[str], None]


def prepare(cfg: TextConfig, cache: Path, report: Report) -> Corpus:
    """Opens the corpus of a config, and prepares it first if `cache` does not hold it.

    A prepared corpus stays as it is: packages installed later, or edited text, do not change a run that resumes.

    Args:
      cfg: The data group. `seq_len` does not matter here.
      cache: Folder of prepared corpora, `<run.root>/cache/data`.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: A domain cannot be read or has no document on one side of the split, or `cache` cannot be written.
    """
    for key, name in [("data.name", cfg.name), *(("data.domains", domain) for domain in cfg.domains)]:
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) is not None,
            "must be 1 to 64 letters, digits, dots, dashes or underscores: it names files",
            key=key,
            value=name,
        )
    recipe = recipe_of(cfg)
    folder = cache / f"{cfg.name}-{digest([ALGORITHM, recipe])[:8]}"
    if not folder.exists():
        try:
            with _lock(cache, report):
                if not folder.exists():
                    _prepare(cfg, recipe, folder, report)
        except OSError as error:
            raise RequestError(
                f"cannot write the prepared data to {cache} ({error})",
                key="run.root",
                instead="run.root=<a folder you can write, with some space>",
            ) from error
    return Corpus(folder)


def recipe_of(cfg: TextConfig) -> dict[str, Any]:
    """What decides the content of a corpus, as JSON values: its paths absolute, without what only decides its use."""
    recipe = dataclasses.asdict(cfg)
    for use in USE:
        del recipe[use]
    for domain in recipe["domains"].values():
        if domain["path"] is not None:
            domain["path"] = str(Path(domain["path"]).expanduser().resolve())
    return recipe


@contextmanager
def _lock(cache: Path, report: Report) -> Iterator[None]:
    # The system releases the lock of a process that dies, so that what it left behind is known to be abandoned.
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("data: another process is preparing data in this cache; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(cfg: TextConfig, recipe: dict[str, Any], folder: Path, report: Report) -> None:
    start = time.monotonic()
    report(f"data: preparing {cfg.name}, once, in {folder}")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for split in SPLITS:
            (partial / split).mkdir(parents=True)
        manifest: dict[str, Any] = {
            "algorithm": ALGORITHM,
            "recipe": recipe,
            "python": platform.python_version(),
            "distributions": {name: distribution.version for name, distribution in installed().items()},
            "domains": {},
            "files": [],
            "documents": {},
        }
        seen: set[bytes] = set()
        for domain in cfg.domains:
            summary, entries, files = _write_domain(cfg, domain, partial, seen)
            manifest["domains"][domain] = summary
            manifest["documents"][domain] = entries
            manifest["files"] += files
            report(_line(domain, summary))
            if summary["absent"]:
                report(f"data: {domain} lacks packages that are not installed: {', '.join(summary['absent'])}")
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    report(f"data: prepared in {time.monotonic() - start:.1f} s")


def _write_domain(
    cfg: TextConfig, domain: str, folder: Path, seen: set[bytes]
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Writes a domain's two token files; returns its part of the manifest: summary, documents, files."""
    left_out: Counter[str] = Counter()
    absent: list[str] = []
    entries: list[dict[str, Any]] = []
    writers = {split: TokenFileWriter(folder / token_file(domain, split), build(cfg.tokenizer)) for split in SPLITS}
    for document in documents(domain, cfg.domains[domain]):
        if isinstance(document, LeftOut):
            left_out[document.reason] += 1
            if document.reason == NOT_INSTALLED:
                absent.append(document.name)
            continue
        new = _new_passages(document, seen, left_out)
        raw = SEPARATOR.join(new.values()).encode()
        if len(raw) < cfg.min_bytes:
            left_out["too short"] += bool(new)
            continue
        if cfg.max_bytes is not None and len(raw) > cfg.max_bytes:
            raw = cut(raw, cfg.max_bytes)
            start = hashlib.sha256(raw.strip()).digest()  # texts that differ only further on are copies now
            if start in seen:
                left_out["duplicate"] += 1
                continue
            seen.add(start)
        seen.update(new)
        held_out = split_point(cfg.split_seed, domain, document.name) < cfg.heldout_fraction
        split = "heldout" if held_out else "train"
        offset, n_tokens = writers[split].append(raw.decode())
        entries.append(
            {
                "name": document.name,
                "split": split,
                "bytes": len(raw),
                "sha256": hashlib.sha256(raw).hexdigest(),
                "offset": offset,
                "tokens": n_tokens,
            }
        )
    summary = {split: totals(entries, split) for split in SPLITS}
    for split, total in summary.items():
        require(
            total["documents"] > 0,
            f"no document of this domain is on the {split} side of the split ({len(entries)} documents in all)",
            key=f"data.domains.{domain}",
            value=cfg.domains[domain].source,
            instead="more text, another data.heldout_fraction or data.split_seed, or a smaller data.min_bytes",
        )
    files = [{"path": token_file(domain, split), **writers[split].close()} for split in SPLITS]
    return {**summary, "left_out": dict(+left_out), "absent": absent}, entries, files


def _new_passages(document: Document, seen: set[bytes], left_out: Counter[str]) -> dict[bytes, str]:
    """The passages, by their hash, that no earlier document has: a copy must not lie on both sides of the split."""
    new: dict[bytes, str] = {}
    for passage in document.passages or (document.text,):
        try:
            key = hashlib.sha256(passage.strip().encode()).digest()
        except UnicodeEncodeError:  # a lone surrogate
            left_out[NOT_UTF8] += 1
            continue
        if key in seen or key in new:
            left_out["duplicate"] += 1
        else:
            new[key] = passage
    return new


class TokenFileWriter:
    """Writes a token file: documents one after the other, each with an end."""

    def __init__(self, path: Path, tokenizer: Tokenizer):
        self._file = path.open("wb")
        self._tokenizer = tokenizer
        self._eos = tokenizer.dtype.type(tokenizer.eos).tobytes()
        self._sha256 = hashlib.sha256()

    def append(self, text: str) -> tuple[int, int]:
        """Adds a document; returns the offset of its first token and its number of tokens without the end."""
        offset = self._file.tell() // self._tokenizer.dtype.itemsize
        tokens = self._tokenizer.encode(text)
        for part in (tokens.tobytes(), self._eos):
            self._file.write(part)
            self._sha256.update(part)
        return offset, len(tokens)

    def close(self) -> dict[str, Any]:
        """Size in bytes and sha256 of the file."""
        size = self._file.tell()
        self._file.close()
        return {"bytes": size, "sha256": self._sha256.hexdigest()}


def _line(domain: str, summary: dict[str, Any]) -> str:
    sides = [f"{summary[split]['documents']} documents, {summary[split]['bytes'] / 1e6:.2f} MB" for split in SPLITS]
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary["left_out"].items()))
    return f"data: {domain}: train {sides[0]}; held out {sides[1]}" + (f"; left out: {reasons}" if reasons else "")
