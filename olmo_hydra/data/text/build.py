"""Builds a corpus from its sources, in steps that are spread over processes and continue after a kill.

1. Every piece of every domain is read, and its passages hashed.
2. In the order of the documents, hashes decide what stays and on which side of the split.
3. A tokenizer is trained on the training side, if the config asks for one.
4. Every piece is tokenized.
5. The 13-grams that held-out and training text share are counted.
6. The pieces of a domain are joined to token files, and all is described in a manifest.
"""

import importlib.metadata
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import TextConfig
from olmo_hydra.config.errors import require
from olmo_hydra.config.tokenizers import trained_size
from olmo_hydra.data.corpus import MANIFEST, SPLITS, fingerprint_of
from olmo_hydra.data.files.hashes import sha256_of_file, sha256_of_json
from olmo_hydra.data.report import Report
from olmo_hydra.data.text import parts, shared
from olmo_hydra.data.text.choose import DUPLICATE, Chooser
from olmo_hydra.data.text.parts import Part
from olmo_hydra.data.text.shards import join
from olmo_hydra.data.text.sources import Unit, units
from olmo_hydra.data.text.workers import Task, Workers
from olmo_hydra.data.tokenizers import bpe, tokenizer

TEXTS = "texts"  # folder of what was read, for any corpus that is tried


@dataclass(frozen=True)
class Settings:
    """How a corpus is built, beside what its config says.

    Attributes:
      workers: Processes; the corpus does not depend on it.
      keep_duplicates: Whether copies of a document stay, on the side of the split where the first one is.
      shard_tokens: The most tokens of a token file.
      overlap: Whether 13-grams shared by held-out and training text are counted.
      progress: Receives the name of a step, how many pieces of it are done, and of how many.
    """

    workers: int
    keep_duplicates: bool = False
    shard_tokens: int = 2**28
    overlap: bool = True
    progress: Callable[[str, int, int], None] = lambda step, done, total: None

    def science(self) -> dict[str, Any]:
        """What decides the content of a corpus."""
        return {"keep_duplicates": self.keep_duplicates, "shard_tokens": self.shard_tokens, "overlap": self.overlap}


@dataclass(frozen=True)
class Piece:
    """A unit of a domain, and what has been made of it."""

    domain: str
    unit: Unit
    part: Part

    def task(self, *arguments: Any) -> Task:
        """A call on its parts, for `Workers`."""
        return f"{self.domain}: {self.unit.name}", (self.part, *arguments)


def build_corpus(cfg: TextConfig, origin: dict[str, Any], folder: Path, settings: Settings, report: Report) -> Path:
    """Builds a corpus; gives its folder, which is in `folder`.

    Args:
      cfg: What to read, and how to split it.
      origin: First entries of the manifest: all that decides the corpus apart from the texts.
      folder: Where to build. Parts of the same origin and texts that are there are used.
      settings: How.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: A source cannot be read, or a side of the split that shall have documents has none.
      RunFailed: A process has died.
    """
    start = time.monotonic()
    found = plan(cfg)
    texts = texts_of(found)
    corpus = folder / sha256_of_json([origin, texts])[:16]
    work = corpus.with_name(f"{corpus.name}.parts")
    for path in (folder / TEXTS, work, corpus):
        path.mkdir(parents=True, exist_ok=True)
    pieces = [
        Piece(domain, unit, Part(folder / TEXTS / _key(origin, domain, unit), work / f"{number:06}"))
        for number, (domain, unit) in enumerate(found)
    ]
    with Workers(settings.workers) as workers:

        def run(step: str, function: Callable[..., None], tasks: list[Task]) -> None:
            settings.progress(step, 0, len(tasks))
            for done, _ in enumerate(workers.run(function, tasks), 1):
                settings.progress(step, done, len(tasks))

        run("reading", parts.read, [piece.task(piece.unit) for piece in pieces if not piece.part.has("read.json")])
        domains = _choose(cfg, pieces, settings)
        tokens = _tokenizer(cfg, pieces, corpus, report)
        left = [piece for piece in pieces if not piece.part.has("encoded.json")]
        began = time.monotonic()
        run("tokenizing", parts.encode, [piece.task(cfg.tokenizer, corpus) for piece in left])
        if left:
            report(_rate(left, time.monotonic() - began))
        overlap = None
        if settings.overlap:
            grams = work / "grams.npy"
            shared.write_grams((piece.part for piece in pieces), grams)
            run("comparing", shared.find, [piece.task(grams) for piece in pieces if not piece.part.has("shared")])
            overlap = shared.compare([(piece.domain, piece.part) for piece in pieces], grams)
    files = [
        file
        for split in SPLITS
        for domain in domains
        for file in join(
            [piece.part for piece in pieces if piece.domain == domain],
            corpus,
            domain,
            split,
            tokens.dtype.itemsize,
            settings.shard_tokens,
        )
    ]
    _add_totals(domains, files, pieces)
    for domain, summary in domains.items():
        report(_line(domain, summary))
        if summary["absent"]:
            report(f"data: {domain} lacks packages that are not installed: {', '.join(summary['absent'])}")
    described = {
        "vocab_size": tokens.vocab_size,
        "eos": tokens.eos,
        "pad": tokens.pad,
        **_hash(corpus / bpe.FILE),
    }
    manifest = {
        **origin,
        "texts": texts,
        "fingerprint": fingerprint_of(described, files),
        "tokenizers": importlib.metadata.version("tokenizers"),
        "tokenizer": described,
        "packages": [
            asdict(package) for package in dict.fromkeys(p.unit.origin for p in pieces) if package is not None
        ],
        "domains": domains,
        "overlap": overlap,
        "files": files,
    }
    (corpus / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    report(f"data: prepared in {time.monotonic() - start:.1f} s")
    return corpus


def plan(cfg: TextConfig) -> list[tuple[str, Unit]]:
    """All pieces of a text in order, with their domains. Raises RequestError if a source cannot be read."""
    return [(domain, unit) for domain, of_domain in cfg.domains.items() for unit in units(domain, of_domain)]


def texts_of(planned: Sequence[tuple[str, Unit]]) -> str:
    """sha256 of what tells whether a text is still the same, see `Unit.state`."""
    return sha256_of_json([(domain, unit.state()) for domain, unit in planned])


def _key(origin: dict[str, Any], domain: str, unit: Unit) -> str:
    """Names all that decides how a piece is read, and nothing that comes after it."""
    source = {key: value for key, value in origin["recipe"]["domains"][domain].items() if key != "heldout_fraction"}
    return sha256_of_json([origin["algorithm"], origin["python"], domain, source, unit.state()])[:32]


def _choose(cfg: TextConfig, pieces: Sequence[Piece], settings: Settings) -> dict[str, dict[str, Any]]:
    """Decides what stays of every piece; gives what was left out by domain.

    Raises:
      RequestError: A side of the split that shall have documents has none.
    """
    chooser = Chooser(cfg, settings.keep_duplicates)
    domains: dict[str, dict[str, Any]] = {}
    for domain, of_domain in cfg.domains.items():
        kept, left_out, copies, absent = Counter[str](), Counter[str](), 0, []
        for piece in pieces:
            if piece.domain == domain:
                chosen = chooser.choose(piece.part, domain)
                kept, left_out, copies = kept + chosen.kept, left_out + chosen.left_out, copies + chosen.copies
                absent += piece.part.load("read.json")["absent"]
        fraction = cfg.heldout_fraction if of_domain.heldout_fraction is None else of_domain.heldout_fraction
        for split, wanted in zip(SPLITS, (fraction < 1, fraction > 0), strict=True):
            in_all = [f"{kept.total()} documents in all", *(f"{n} {reason}" for reason, n in sorted(left_out.items()))]
            copied = kept.total() == 0 and left_out[DUPLICATE] > 0
            require(
                kept[split] > 0 or not wanted,
                f"no document of this domain is on the {split} side of the split ({', '.join(in_all)})",
                key=f"data.domains.{domain}",
                value=of_domain.path or of_domain.source,
                instead="text that no domain before it has: what is trained on cannot be held out"
                if copied
                else "more text, another data.heldout_fraction or data.split_seed, or a smaller data.min_bytes",
            )
        domains[domain] = {"left_out": left_out, "copies_kept": copies, "absent": absent}
    return domains


def _tokenizer(cfg: TextConfig, pieces: Sequence[Piece], corpus: Path, report: Report) -> tokenizer.Tokenizer:
    """The corpus's tokenizer, trained if it is to be, and kept with it unless it is bytes."""
    size = trained_size(cfg.tokenizer)
    if size is not None and not (corpus / bpe.FILE).is_file():
        report(f"data: training a tokenizer of {size:,} ids")
        bpe.train((raw.decode() for piece in pieces for _, raw in piece.part.texts("train")), size).save(corpus)
    elif cfg.tokenizer != "bytes":
        bpe.find(cfg.tokenizer, corpus, report).save(corpus)
    return tokenizer.build(cfg.tokenizer, corpus, report)


def _add_totals(domains: dict[str, dict[str, Any]], files: list[dict[str, Any]], pieces: Sequence[Piece]) -> None:
    """Adds to each domain what its token files hold, and how often the text of a special token occurs."""
    for summary in domains.values():
        summary.update({split: {"documents": 0, "bytes": 0, "tokens": 0} for split in SPLITS})
        summary["special_tokens"] = Counter[str]()
    for file in files:
        total = domains[file["domain"]][file["split"]]
        total["documents"] += file["documents"]
        total["tokens"] += file["tokens"]
    for piece in pieces:
        encoded = piece.part.load("encoded.json")
        domains[piece.domain]["special_tokens"] += Counter(encoded["special_tokens"])
        for split in SPLITS:
            domains[piece.domain][split]["bytes"] += encoded[split]["bytes"]


def _rate(pieces: Sequence[Piece], seconds: float) -> str:
    totals = [piece.part.load("encoded.json")[split] for piece in pieces for split in SPLITS]
    n_tokens, n_bytes = (sum(total[field] for total in totals) for field in ("tokens", "bytes"))
    rate = f"{n_bytes / 1e6 / seconds:.1f} MB/s, {n_tokens / 1e6 / seconds:.2f} million tokens/s"
    return f"data: tokenized {n_bytes / 1e6:.1f} MB to {n_tokens:,} tokens in {seconds:.1f} s: {rate}"


def _line(domain: str, summary: dict[str, Any]) -> str:
    sides = [f"{summary[split]['documents']} documents, {summary[split]['bytes'] / 1e6:.2f} MB" for split in SPLITS]
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary["left_out"].items()))
    return f"data: {domain}: train {sides[0]}; held out {sides[1]}" + (f"; left out: {reasons}" if reasons else "")


def _hash(file: Path) -> dict[str, str]:
    return {"sha256": sha256_of_file(file)} if file.is_file() else {}
