"""`olmo-hydra data prepare`: text to a corpus of tokens, from a config into the cache or from sources into a folder."""

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from olmo_hydra.config import tokenizers
from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import DomainConfig, PreparedConfig, TextConfig
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.data.corpus import SPLITS, Corpus
from olmo_hydra.data.listing import open_prepared
from olmo_hydra.data.text.build import Settings
from olmo_hydra.data.text.prepare import cores, is_of_its_text, prepare, prepare_into
from olmo_hydra.data.text.sources import SOURCES

TYPED = {  # what the config calls what the command takes
    "data.tokenizer=": "--tokenizer ",
    "data.tokenizer": "--tokenizer",
    "data.heldout_fraction": "--heldout-fraction",
    " or data.split_seed, or a smaller data.min_bytes": "",
    "data.domains.": "",
}
ANY_MODEL = "model.vocab_size=1048576"  # preparing text makes no model, so that no vocabulary is too small for it
OVERRIDE = re.compile(r"[+~]*data(\.[\w-]+)*=|~data(\.[\w-]+)+$")
OF_SOURCES = {  # flags that describe sources, and what says it in a config
    "tokenizer": "data.tokenizer=",
    "heldout": "data.domains.NAME.heldout_fraction=1",
    "heldout_fraction": "data.heldout_fraction=",
    "text_field": "data.domains.NAME.text_field=",
}
OF_PACKAGES = ("deb", "docstrings", "pypi")  # sources that read packages, not a path


def run(parsed: argparse.Namespace) -> None:
    """Prepares, and says what there is now and how to train on it."""
    if parsed.out is None:
        for flag in (*OF_SOURCES, "keep_duplicates", "shard_tokens", "overlap", "workers"):
            _require_absent(parsed, flag, "is for a folder of one's own", "--out FOLDER")
        of_config(parsed.overrides, parsed.json, check=False)
        return
    _require_text(parsed.out)
    with _reporting() as (report, progress):
        settings = Settings(
            workers=cores() if parsed.workers is None else parsed.workers,
            keep_duplicates=parsed.keep_duplicates is True,
            overlap=parsed.overlap is not False,
            progress=progress,
            **({} if parsed.shard_tokens is None else {"shard_tokens": parsed.shard_tokens}),
        )
        require(settings.workers >= 1, "must be at least 1", key="--workers", value=settings.workers)
        require(settings.shard_tokens >= 1, "must be at least 1", key="--shard-tokens", value=settings.shard_tokens)
        overrides = _overrides(parsed.overrides)
        with nullcontext() if overrides else _named_as_typed():
            cfg = _of_overrides(parsed) if overrides else _of_sources(parsed)
            corpus = prepare_into(cfg, parsed.out, settings, report)
    tokenizer = corpus.manifest["recipe"]["tokenizer"]
    train = (
        f"python train.py data=prepared data.path={shlex.quote(str(parsed.out))} "
        f"data.tokenizer={shlex.quote(tokenizer)} model.vocab_size={corpus.tokenizer.vocab_size}"
    )
    _print(corpus, parsed.json, train)


def of_config(overrides: list[str], as_json: bool, *, check: bool) -> None:
    """Prepares (or opens) the corpus of a config and prints its domains; `check` reads every file, and opens one that
    is prepared already too."""
    config = compose([ANY_MODEL, *overrides])
    if check and isinstance(config.data, PreparedConfig):
        corpus = open_prepared(config.data)
        corpus.verify()
        _print(corpus, as_json)
        return
    if not isinstance(config.data, TextConfig):
        raise RequestError("is not text to prepare", key="data", value=config.data.name, instead="data=python_text")
    with _reporting() as (report, _):
        corpus = prepare(config.data, Path(config.run.root) / "cache" / "data", report)
        if not is_of_its_text(config.data, corpus):
            report(f"data: the text has changed since; a run goes on with it as it was, rm -r {corpus.folder} drops it")
    if check:
        corpus.verify()
    _print(corpus, as_json)


def _overrides(typed: list[str]) -> list[str]:
    """Those of the positional arguments that are overrides: what exists is a source, whatever its name looks like."""
    overrides = [source for source in typed if OVERRIDE.match(source) and not Path(source).exists()]
    others = [source for source in typed if source not in overrides]
    require(
        not (overrides and others),
        "is no override of data, and others are: a corpus is of a config or of sources",
        key="SOURCE",
        value=others,
        instead="overrides of data alone, or sources alone",
    )
    return overrides


def _of_overrides(parsed: argparse.Namespace) -> TextConfig:
    data = compose([ANY_MODEL, *parsed.overrides]).data
    if not isinstance(data, TextConfig):
        raise RequestError("is not text to prepare", key="data", value=data.name, instead="data=python_text")
    for flag, override in OF_SOURCES.items():
        _require_absent(parsed, flag, "is for sources, and the text is that of a config", override)
    return data


def _require_absent(parsed: argparse.Namespace, flag: str, problem: str, instead: str) -> None:
    given = getattr(parsed, flag)
    name = "no_overlap" if flag == "overlap" and given is False else flag
    require(given is None, problem, key=f"--{name.replace('_', '-')}", value=given, instead=instead)


def _require_text(folder: Path) -> None:
    """Refuses a name with bytes that are no UTF-8: no config could name the corpus, which is in YAML."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            "is not UTF-8, so that no data.path can name it",
            key="--out",
            value=ascii(str(folder)),
            instead="--out NAME",
        ) from error


def _of_sources(parsed: argparse.Namespace) -> TextConfig:
    """What the arguments describe, as a config of text would."""
    require(bool(parsed.overrides), "names no text", key="SOURCE", value=[], instead="a file or a folder of text")
    if parsed.tokenizer is None:
        raise RequestError("is not given", key="--tokenizer", instead=f"--tokenizer {tokenizers.WAYS}")
    tokenizers.check(parsed.tokenizer)
    domains: dict[str, DomainConfig] = {}
    fraction = parsed.heldout_fraction
    if fraction is None:
        fraction = 0.05 if parsed.heldout is None else 0.0
    require(0 <= fraction < 1, "must lie in [0, 1)", key="--heldout-fraction", value=fraction)
    for texts, share in ((parsed.overrides, fraction), (parsed.heldout or [], 1.0)):
        for text in texts:
            name, domain = _domain(text, parsed.text_field or "text")
            require(name not in domains, "names two sources", key=name, value=text, instead=f"other_name={text}")
            domain.heldout_fraction = share
            domains[name] = domain
    return TextConfig(
        name="prepared",
        tokenizer=parsed.tokenizer,
        domains=domains,
        heldout_fraction=fraction,
        split_seed=0,
        min_bytes=1,
        max_bytes=None,
    )


def _domain(text: str, text_field: str) -> tuple[str, DomainConfig]:
    """Name and config of `[NAME=][KIND:]PLACE`."""
    # What exists is meant, whatever its name looks like.
    name, _, place = text.partition("=") if re.match(r"[\w.-]+=", text) and not Path(text).exists() else ("", "", text)
    kind, _, rest = place.partition(":")
    if kind not in SOURCES or Path(place).exists():
        kind, rest = "files", place
    if not name:
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(rest).name.split(".")[0] or kind).strip("._-") or kind
    packages = rest.split(",") if kind in OF_PACKAGES else []
    return name, DomainConfig(
        source=kind, path=None if packages or not rest else rest, packages=packages, text_field=text_field
    )


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Errors about a config that nobody has written speak of the arguments instead."""
    try:
        yield
    except RequestError as error:
        for ours, typed in TYPED.items():
            error.key = error.key and error.key.replace(ours, typed)
            error.instead = error.instead and error.instead.replace(ours, typed)
        error.where = error.where or "the command line"
        raise


@contextmanager
def _reporting() -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """Lines on standard error, and on a terminal a bar below them."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("reading", total=None)

        def progress(step: str, done: int, total: int) -> None:
            bar.update(shown, description=step, completed=done, total=total)

        yield lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True), progress


def _print(corpus: Corpus, as_json: bool, train: str | None = None) -> None:
    manifest = corpus.manifest
    if as_json:
        found = {key: manifest[key] for key in ("tokenizer", "domains", "overlap")}
        print(json.dumps({"folder": str(corpus.folder), "fingerprint": corpus.fingerprint, **found, "train": train}))
        return
    print(f"folder       {corpus.folder}\nfingerprint  {corpus.fingerprint}\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("domain", overflow="fold")
    for name in ("train", "MB", "tokens", "held out", "MB", "tokens", "left out"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = {domain: [*_sizes(summary), summary["left_out"]] for domain, summary in manifest["domains"].items()}
    for domain, (*sizes, left_out) in rows.items():
        table.add_row(domain, *map(_short, sizes), _short(sum(left_out.values())))
    if len(rows) > 1:
        sums = [sum(row[i] for row in rows.values()) for i in range(6)]
        table.add_row("all", *map(_short, sums), _short(sum(sum(row[6].values()) for row in rows.values())))
    Console().print(table)
    for domain, summary in manifest["domains"].items():
        said = [f"{count:,} left out: {reason}" for reason, count in sorted(summary["left_out"].items())]
        said += [f"{summary['copies_kept']:,} copies kept"] if summary["copies_kept"] else []
        said += [f"{n:,} times the text {token}" for token, n in sorted(summary["special_tokens"].items())]
        shared = ((manifest["overlap"] or {}).get("domains") or {}).get(domain)
        if shared:
            share = shared["grams_shared"] / max(1, shared["grams"])
            where = f"{shared['documents_shared']:,} of {shared['documents']:,} documents"
            said.append(f"training text has {share:.2%} of the held-out 13-grams, in {where}")
        if said:
            print(f"{domain}: {'; '.join(said)}")
    if train is not None:
        print(f"\n{train}")


def _sizes(summary: dict[str, Any]) -> list[float]:
    fields = (("documents", 1), ("bytes", 1e-6), ("tokens", 1))
    return [summary[split][field] * scale for split in SPLITS for field, scale in fields]


def _short(number: float) -> str:
    if isinstance(number, float) and number < 100:
        return f"{number:.2f}"
    return f"{number / 1e6:,.2f}M" if number >= 1e7 else f"{number:,.0f}"
