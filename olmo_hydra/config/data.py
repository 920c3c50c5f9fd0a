"""Schema of the `data` group: which text, cut how, split how."""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config.errors import require
from olmo_hydra.config.store import schema


class Tokenizer(Enum):
    """`bytes`: UTF-8 bytes are tokens 0 to 255, the end of a document is 256."""

    bytes = "bytes"

    @property
    def vocab_size(self) -> int:
        return {Tokenizer.bytes: 257}[self]


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


@schema("data")
@dataclass
class DataConfig:
    """Text prepared on this machine, by domain. Fields are documented in `conf/data/*.yaml`."""

    name: str = MISSING
    tokenizer: Tokenizer = MISSING
    seq_len: int = MISSING
    domains: dict[str, DomainConfig] = field(default_factory=dict)
    heldout_fraction: float = MISSING
    heldout_bytes: int | None = None
    heldout_document_bytes: int | None = None
    split_seed: int = MISSING
    min_bytes: int = MISSING
    max_bytes: int | None = None

    def check(self) -> None:
        require(self.seq_len >= 2, "must be at least 2: a token and its target", key="data.seq_len", value=self.seq_len)
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
