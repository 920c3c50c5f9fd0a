"""The data of a run, opened: from its config to batches, held-out documents and a fingerprint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, Instances, TextConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.root import Config
from olmo_hydra.data.corpus import Corpus, HeldoutDocument
from olmo_hydra.data.files import TokenFile
from olmo_hydra.data.instances import Packed, Padded, Source, Windows
from olmo_hydra.data.loader import Batches, Cut
from olmo_hydra.data.sampler import Sampler
from olmo_hydra.data.text.prepare import prepare
from olmo_hydra.data.tokenizer import Tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True)
class Listing:
    """What a config names: token files in their order, and what is never trained on, by label.

    `heldout` reads when it is called. `facts` go into the record of a start.
    """

    tokenizer: Tokenizer
    files: Sequence[TokenFile]
    heldout: Callable[[], Mapping[str, Sequence[HeldoutDocument]]]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Data:
    """Everything a run needs of its data.

    `fingerprint` holds, as JSON values, all that decides which tokens global batch n has; two that are equal give the
    same batches.
    """

    tokenizer: Tokenizer
    files: Sequence[TokenFile]
    source: Source
    sampler: Sampler
    batches: Batches
    heldout: Callable[[], Mapping[str, Sequence[HeldoutDocument]]]
    fingerprint: dict[str, Any]
    description: dict[str, Any]


def open_data(config: Config, cache: Path, report: Report) -> Data:
    """Opens the data of a run, and prepares what is not there yet.

    Args:
      config: The run.
      cache: Folder of prepared text, orders and copies, `<run.root>/cache`.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: A file is absent or is no token file, there is less than one global batch, ...
    """
    cfg = config.data
    listing = list_files(cfg, cache, report)
    tokenizer = listing.tokenizer
    source = make_source(cfg, listing.files, tokenizer, cache)
    if len(source) < config.train.global_batch:
        raise too_few(cfg, len(source), config.train.global_batch)
    assert cfg.seed is not None
    sampler = Sampler(len(source), config.train.global_batch, seed=cfg.seed, chunk=cfg.chunk, folder=cache / "order")
    cut = Cut(
        cfg.seq_len,
        tokenizer.vocab_size,
        tokenizer.eos,
        tokenizer.pad,
        cfg.document_mask,
        cfg.repetition_filter,
        cfg.filter_padding,
    )
    batches = Batches(listing.files, source, sampler, cut)
    facts = {"instances": len(source), "dropped_tokens": source.dropped, "padding_tokens": source.padding}
    if source.padding or cfg.instances is not Instances.windows:
        report(f"data: {share(source, cfg.seq_len)}")
    fingerprint = {"text": listing.facts.get("fingerprint")}
    return Data(tokenizer, listing.files, source, sampler, batches, listing.heldout, fingerprint, listing.facts | facts)


@singledispatch
def list_files(cfg: DataConfig, cache: Path, report: Report) -> Listing:
    """The files that a config of the data group names. Each schema registers its own function."""
    raise RequestError("cannot be read yet", key="data", value=cfg.name, instead="data=python_text")


@list_files.register
def _text(cfg: TextConfig, cache: Path, report: Report) -> Listing:
    corpus = prepare(cfg, cache / "data", report)
    return corpus_listing(corpus, cfg)


def corpus_listing(corpus: Corpus, cfg: DataConfig) -> Listing:
    """The files of a prepared corpus."""
    facts = {
        "name": cfg.name,
        "fingerprint": corpus.fingerprint,
        "folder": str(corpus.folder),
        "python": corpus.manifest["python"],
        "domains": corpus.manifest["domains"],
    }
    return Listing(corpus.tokenizer, corpus.train_files(), lambda: corpus.heldout_documents(cfg), facts)


def make_source(cfg: DataConfig, files: Sequence[TokenFile], tokenizer: Tokenizer, cache: Path) -> Source:
    """The instances of the files."""
    match cfg.instances:
        case Instances.windows:
            return Windows(files, cfg.seq_len, cfg.chunk)
        case Instances.packed:
            return Packed(files, cfg.seq_len, cfg.pack_files, tokenizer.eos, cache / "packing")
        case Instances.padded:
            return Padded(files, cfg.seq_len, tokenizer.eos, cache / "packing")


def share(source: Source, seq_len: int) -> str:
    """How much of the files the instances hold, and of the instances is padding, as a sentence."""
    room = len(source) * seq_len
    dropped = source.dropped / (room - source.padding + source.dropped)
    return (
        f"{len(source):,} instances of {seq_len:,} tokens, {source.padding / room:.1%} of them "
        f"padding; {source.dropped:,} tokens ({dropped:.1%}) of the files are in none"
    )


def too_few(cfg: DataConfig, n_instances: int, global_batch: int) -> RequestError:
    """What to say where the data holds less than one global batch."""
    if n_instances == 0 and cfg.instances is not Instances.windows:
        return RequestError(
            "no document ends in the training files, so that none can be told from the next",
            key="data.instances",
            value=cfg.instances,
            instead="data.instances=windows",
        )
    make = "training files hold" if cfg.instances is Instances.windows else "documents of the training files make"
    return RequestError(
        f"more than the {n_instances} instances of {cfg.seq_len} tokens that the {make}",
        key="train.global_batch",
        value=global_batch,
        instead=f"train.global_batch={n_instances} at most" if n_instances else "a shorter data.seq_len",
    )
