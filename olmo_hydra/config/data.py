"""Schema of the `data` group: which text, cut how, split how."""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config.errors import require
from olmo_hydra.config.store import schema


class Tokenizer(Enum):
    """`bytes`: UTF-8 bytes are tokens 0 to 255, the end of a document is 256. `dolma2`: Olmo 2's and 3's."""

    bytes = "bytes"
    dolma2 = "dolma2"

    @property
    def vocab_size(self) -> int:
        return {Tokenizer.bytes: 257, Tokenizer.dolma2: 100_278}[self]


class Instances(Enum):
    """How documents become instances of `seq_len` tokens.

    `windows` cuts the token stream, and documents with it; `packed` fills instances with whole documents by best fit
    and pads what is left (arXiv 2404.10830). A document longer than an instance is cut there, and loses the rest.
    """

    windows = "windows"
    packed = "packed"


@dataclass
class DomainConfig:
    """One domain of text.

    `source` names a function in `olmo_hydra/data/sources.py`; `packages` are the installed distributions it reads,
    `path` the folder, for sources that need them.
    """

    source: str = MISSING
    packages: list[str] = field(default_factory=list)
    path: str | None = None
    pattern: str = "**/*.txt"


@dataclass
class DataConfig:
    """What all data has: how tokens become instances. Fields are documented in `conf/data/*.yaml`."""

    name: str = MISSING
    tokenizer: Tokenizer = MISSING
    seq_len: int = MISSING
    seed: int | None = None
    instances: Instances = MISSING
    pack_files: int = MISSING
    document_mask: bool = MISSING

    def derive(self, run_seed: int) -> None:
        """Fills the seed of the order from the run's."""
        if self.seed is None:
            self.seed = run_seed

    def check(self) -> None:
        require(self.seq_len >= 2, "must be at least 2: a token and its target", key="data.seq_len", value=self.seq_len)
        assert self.seed is not None
        require(0 <= self.seed < 2**32, "must lie in [0, 2^32)", key="data.seed", value=self.seed)
        require(self.pack_files >= 1, "must be at least 1 file", key="data.pack_files", value=self.pack_files)


@schema("data", "mix")
@dataclass
class MixConfig(DataConfig):
    """Token files that a mix of OLMo-core lists. Composed and planned with; reading them is not there yet."""

    mix: str = MISSING
    file_seed: int | None = None
    repetition_filter: bool = MISSING


@schema("data", "text")
@dataclass
class TextConfig(DataConfig):
    """Text prepared on this machine, by domain."""

    domains: dict[str, DomainConfig] = field(default_factory=dict)
    heldout_fraction: float = MISSING
    heldout_bytes: int | None = None
    heldout_document_bytes: int | None = None
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
        for name in ("heldout_bytes", "heldout_document_bytes"):
            value = getattr(self, name)
            require(
                value is None or value >= 4, "must be at least 4, or null for no limit", key=f"data.{name}", value=value
            )
        require(self.min_bytes >= 1, "must be at least 1", key="data.min_bytes", value=self.min_bytes)
        require(
            self.max_bytes is None or self.max_bytes >= self.min_bytes,
            f"must be null or at least data.min_bytes={self.min_bytes}",
            key="data.max_bytes",
            value=self.max_bytes,
        )
