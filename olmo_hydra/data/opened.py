"""The data of a run, opened: from its config to batches, held-out documents and a fingerprint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, Instances, TokensConfig
from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.root import Config
from olmo_hydra.config.tokenizers import Ids
from olmo_hydra.data.files.token_file import TokenFile
from olmo_hydra.data.fingerprint import fingerprint
from olmo_hydra.data.heldout import HeldoutDocument
from olmo_hydra.data.instances.kinds import Packed, Padded, Source, Windows
from olmo_hydra.data.instances.mixture import Ingredient, Mixture
from olmo_hydra.data.listing import list_files
from olmo_hydra.data.loader import Batches, Cut
from olmo_hydra.data.report import Report
from olmo_hydra.data.sampler import Sampler
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer


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
    files, tokenizer = listing.files, listing.tokenizer
    require(
        tokenizer.vocab_size <= config.model.vocab_size,
        f"is smaller than the {tokenizer.vocab_size} tokens of data.tokenizer={cfg.tokenizer}",
        key="model.vocab_size",
        value=config.model.vocab_size,
        instead=f"model.vocab_size={tokenizer.vocab_size}",
    )
    source = make_source(cfg, files, tokenizer.eos, cache)
    if len(source) < config.train.global_batch:
        raise too_few(cfg, files, len(source), config.train.global_batch)
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
    report(f"data: {share(source, cfg.seq_len)}")
    return Data(
        tokenizer,
        files,
        source,
        sampler,
        Batches(files, source, sampler, cut),
        listing.heldout,
        fingerprint(cfg, Ids(tokenizer.vocab_size, tokenizer.eos, tokenizer.pad), files, len(source)),
        listing.facts | {"instances": len(source), "dropped_tokens": source.dropped, "padding_tokens": source.padding},
    )


def make_source(cfg: DataConfig, files: Sequence[TokenFile], end: int, cache: Path) -> Source:
    """The instances of the files; `end` is the token that ends a document."""
    if not (isinstance(cfg, TokensConfig) and cfg.is_mixture):
        return _cut(cfg, files, end, cache)
    ingredients, first = [], 0
    for label, named in cfg.sources.items():
        mine = [file for file in files if file.label == label]
        assert named.ratio is not None, "a mixture gives a ratio to each of its sources"
        ingredients.append(Ingredient(label, _cut(cfg, mine, end, cache), first, named.ratio, named.max_repetition))
        first += len(mine)
    assert cfg.mixture_seed is not None
    return Mixture(
        ingredients,
        seq_len=cfg.seq_len,
        seed=cfg.mixture_seed,
        folder=cache / "mixture",
        chunk=cfg.chunk,
        tokens=cfg.mixture_tokens,
    )


def _cut(cfg: DataConfig, files: Sequence[TokenFile], end: int, cache: Path) -> Source:
    match cfg.instances:
        case Instances.windows:
            return Windows(files, cfg.seq_len, cfg.chunk)
        case Instances.packed:
            return Packed(files, cfg.seq_len, cfg.pack_files, end, cache / "packing")
        case Instances.padded:
            return Padded(files, cfg.seq_len, end, cache / "packing")


def share(source: Source, seq_len: int) -> str:
    """How much of the files the instances hold, and of the instances is padding, as a sentence."""
    room = len(source) * seq_len
    dropped = source.dropped / (room - source.padding + source.dropped)
    return (
        f"{len(source):,} instances of {seq_len:,} tokens, {source.padding / room:.1%} of them "
        f"padding; {source.dropped:,} tokens ({dropped:.1%}) of the files are in none"
    )


def too_few(cfg: DataConfig, files: Sequence[TokenFile], n_instances: int, global_batch: int) -> RequestError:
    """What to say where the data holds less than one global batch."""
    if not any(file.n_tokens for file in files):
        others = f", nor do the {len(files) - 1:,} other training files" if len(files) > 1 else ""
        return RequestError(f"holds no token{others}", where=str(files[0].path), instead="a file of tokens")
    if isinstance(cfg, TokensConfig) and cfg.mixture_tokens is not None:
        least = -(-global_batch // cfg.chunk) * cfg.chunk * cfg.seq_len
        return RequestError(
            f"makes {n_instances} instances of {cfg.seq_len} tokens, fewer than train.global_batch={global_batch}",
            key="data.mixture_tokens",
            value=cfg.mixture_tokens,
            instead=f"data.mixture_tokens={least} at least",
        )
    if n_instances == 0 and cfg.instances is not Instances.windows:
        return RequestError(
            "no document ends in the training files, so that none can be told from the next",
            key="data.instances",
            value=cfg.instances,
            instead="data.instances=windows",
        )
    if isinstance(cfg, TokensConfig) and cfg.is_mixture:
        make = "mixture holds"
    else:
        make = "training files hold" if cfg.instances is Instances.windows else "documents of the training files make"
    return RequestError(
        f"more than the {n_instances} instances of {cfg.seq_len} tokens that the {make}",
        key="train.global_batch",
        value=global_batch,
        instead=f"train.global_batch={n_instances} at most" if n_instances else "a shorter data.seq_len",
    )
