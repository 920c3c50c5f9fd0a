"""Schemas of the `data` group: which tokens, cut how, in which order. Fields are documented in `conf/data/*.yaml`."""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from olmo_hydra.config import tokenizers
from olmo_hydra.config.errors import require
from olmo_hydra.config.store import NO_SCIENCE, schema


class Instances(Enum):
    """How documents become instances of `seq_len` tokens.

    `windows` cuts the token stream, and documents with it; `packed` fills instances with whole documents by best fit
    and pads what is left (arXiv 2404.10830); `padded` gives each document an instance of its own. In the last two a
    document longer than an instance is cut there, and loses the rest.
    """

    windows = "windows"
    packed = "packed"
    padded = "padded"


class Positions(Enum):
    """Whether positions run through an instance (`continued`) or start at each of its documents (`restarted`)."""

    continued = "continued"
    restarted = "restarted"


@dataclass
class DataConfig:
    """What all data has: how tokens become instances, and in which order they come."""

    name: str = MISSING
    tokenizer: str = MISSING
    seq_len: int = MISSING
    max_target_seq_len: int | None = None
    seed: int | None = None
    instances: Instances = MISSING
    pack_files: int = MISSING
    document_mask: bool = MISSING
    document_positions: Positions = MISSING
    repetition_filter: bool = MISSING
    filter_padding: bool = MISSING
    heldout_bytes: int | None = None
    heldout_document_bytes: int | None = None

    @property
    def chunk(self) -> int:
        """Instances that stay together in the order."""
        return 1 if self.max_target_seq_len is None else self.max_target_seq_len // self.seq_len

    def derive(self, run_seed: int) -> None:
        """Fills the seed of the order from the run's."""
        if self.seed is None:
            self.seed = run_seed

    def check(self) -> None:
        tokenizers.check(self.tokenizer)
        require(self.seq_len >= 2, "must be at least 2: a token and its target", key="data.seq_len", value=self.seq_len)
        longest = self.max_target_seq_len
        require(
            longest is None or (longest >= self.seq_len and longest % self.seq_len == 0),
            f"must be a multiple of data.seq_len={self.seq_len}, or null",
            key="data.max_target_seq_len",
            value=longest,
            instead=f"data.max_target_seq_len={-(-(longest or 0) // self.seq_len) * self.seq_len}",
        )
        require(
            longest is None or self.instances is Instances.windows,
            "is for data.instances=windows: documents are not cut by a longer length",
            key="data.max_target_seq_len",
            value=longest,
            instead="data.max_target_seq_len=null",
        )
        assert self.seed is not None
        require(0 <= self.seed < 2**32, "must lie in [0, 2^32)", key="data.seed", value=self.seed)
        require(self.pack_files >= 1, "must be at least 1 file", key="data.pack_files", value=self.pack_files)
        require(
            self.document_mask or self.document_positions is Positions.continued,
            "needs data.document_mask=true: with attention across documents, positions run on",
            key="data.document_positions",
            value=self.document_positions,
            instead="data.document_mask=true, or data.document_positions=continued",
        )
        require(
            not self.filter_padding or self.instances is Instances.packed,
            "is what OLMo-core does in packed instances; there is nothing to compare with in others",
            key="data.filter_padding",
            value=True,
            instead="data.filter_padding=false",
        )
        for name in ("heldout_bytes", "heldout_document_bytes"):
            value = getattr(self, name)
            require(
                value is None or value >= 4, "must be at least 4, or null for no limit", key=f"data.{name}", value=value
            )


@dataclass
class DomainConfig:
    """One domain of text.

    `source` names a function in `olmo_hydra/data/text/sources/`; `packages` are the packages it reads, `path` the file
    or folder, for sources that need them. Of their files it takes those that match `pattern`, or all that it can read;
    `format` names a reader of `formats.py`, or null goes by their endings; `text_field` is where a record has its text.
    `heldout_fraction` of its own: 0 for training text alone, 1 for held-out alone.
    """

    source: str = MISSING
    packages: list[str] = field(default_factory=list)
    path: str | None = None
    pattern: str | None = None
    format: str | None = None
    text_field: str = "text"
    heldout_fraction: float | None = None


@schema("data", "text")
@dataclass
class TextConfig(DataConfig):
    """Text prepared on this machine, by domain."""

    domains: dict[str, DomainConfig] = field(default_factory=dict)
    heldout_fraction: float = MISSING
    split_seed: int = MISSING
    min_bytes: int = MISSING
    max_bytes: int | None = None

    def check(self) -> None:
        super().check()
        require(bool(self.domains), "names no domain", key="data.domains", value=[], instead="data=python_text")
        require(
            0 < self.heldout_fraction < 1,
            "must lie between 0 and 1: both sides of the split need documents",
            key="data.heldout_fraction",
            value=self.heldout_fraction,
            instead="data.heldout_fraction=0.05",
        )
        for name, domain in self.domains.items():
            share = domain.heldout_fraction
            require(
                share is None or 0 <= share <= 1,
                "must lie in [0, 1]: 0 trains on all of the domain, 1 on none; null takes data.heldout_fraction",
                key=f"data.domains.{name}.heldout_fraction",
                value=share,
            )
        require(self.min_bytes >= 1, "must be at least 1", key="data.min_bytes", value=self.min_bytes)
        require(
            self.max_bytes is None or self.max_bytes >= self.min_bytes,
            f"must be null or at least data.min_bytes={self.min_bytes}",
            key="data.max_bytes",
            value=self.max_bytes,
        )


@schema("data", "prepared")
@dataclass
class PreparedConfig(DataConfig):
    """A corpus that `olmo-hydra data prepare --out FOLDER` made. What it is decides; where it lies does not."""

    path: str = field(default=MISSING, metadata=NO_SCIENCE)
    corpus: str | None = None

    def derive(self, run_seed: int) -> None:
        """Fills the fingerprint of the corpus from its manifest. Where there is none, opening says so."""
        super().derive(run_seed)
        if self.corpus is None:
            with suppress(OSError, ValueError, AttributeError):
                recorded = json.loads((Path(self.path).expanduser() / "manifest.json").read_text("utf-8"))
                self.corpus = recorded.get("fingerprint")


@dataclass
class FilesConfig(DataConfig):
    """Token files as OLMo-core writes them. Where they lie is no part of a run's identity; what they are is."""

    root: str | None = field(default=None, metadata=NO_SCIENCE)
    keep_copies: bool = field(default=MISSING, metadata=NO_SCIENCE)
    file_seed: int | None = None
    heldout_mix: str | None = None


@schema("data", "mix")
@dataclass
class MixConfig(FilesConfig):
    """Token files that a mix of OLMo-core lists."""

    mix: str = MISSING


@dataclass
class TokenSourceConfig:
    """Token files under one label. With a `ratio`, that share of the mixture, by at most `max_repetition` repeats."""

    paths: list[str] = MISSING
    label_masks: list[str] = field(default_factory=list)
    ratio: float | None = None
    max_repetition: float = 1.0


@schema("data", "tokens")
@dataclass
class TokensConfig(FilesConfig):
    """Token files by label: all of each, or a mixture by ratios."""

    sources: dict[str, TokenSourceConfig] = field(default_factory=dict)
    mixture_tokens: int | None = None
    mixture_seed: int | None = None

    @property
    def is_mixture(self) -> bool:
        return any(source.ratio is not None for source in self.sources.values())

    def derive(self, run_seed: int) -> None:
        super().derive(run_seed)
        if self.is_mixture and self.mixture_seed is None:
            self.mixture_seed = self.seed

    def check(self) -> None:
        super().check()
        example = "\"+data.sources={web: {paths: ['web/*.npy']}}\""
        require(bool(self.sources), "names no token files", key="data.sources", value=[], instead=example)
        for label, source in self.sources.items():
            key = f"data.sources.{label}"
            require(bool(source.paths), "names no token files", key=f"{key}.paths", value=[], instead=example)
            require(
                (source.ratio is not None) == self.is_mixture,
                "a mixture gives a ratio to each of its sources",
                key=f"{key}.ratio",
                value=source.ratio,
                instead=f"{key}.ratio=0.5, or no ratio anywhere",
            )
            require(
                source.ratio is None or 0 < source.ratio < math.inf,
                "must be positive",
                key=f"{key}.ratio",
                value=source.ratio,
            )
            require(
                1 <= source.max_repetition < math.inf,
                "must be at least 1, which repeats nothing, and finite",
                key=f"{key}.max_repetition",
                value=source.max_repetition,
            )
            require(
                source.ratio is not None or source.max_repetition == 1,
                "repeats nothing without a ratio: all of each source is read, once an epoch",
                key=f"{key}.max_repetition",
                value=source.max_repetition,
                instead=f"{key}.ratio=0.5 and a ratio for each other source, or no max_repetition",
            )
        require(
            self.mixture_tokens is None or (self.is_mixture and self.mixture_tokens > 0),
            "must be positive, and is for sources with a ratio",
            key="data.mixture_tokens",
            value=self.mixture_tokens,
            instead="data.mixture_tokens=null",
        )
        require(
            self.mixture_seed is None or 0 <= self.mixture_seed < 2**32,
            "must lie in [0, 2^32)",
            key="data.mixture_seed",
            value=self.mixture_seed,
        )
