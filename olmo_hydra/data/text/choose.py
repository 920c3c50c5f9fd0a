"""Which documents a corpus keeps, and on which side of the split: decided by hashes, in the order of documents."""

import hashlib
from collections import Counter
from dataclasses import astuple, dataclass, field

from olmo_hydra.config.data import TextConfig
from olmo_hydra.data.corpus import SPLITS, split_point
from olmo_hydra.data.heldout import cut
from olmo_hydra.data.text.parts import Kept, Part, Passage, line, text_of
from olmo_hydra.data.text.sources.registry import SEPARATOR

DUPLICATE, TOO_SHORT = "duplicate", "too short"


@dataclass(frozen=True)
class Chosen:
    """Documents of a piece: those that stay by side of the split, what is left out by reason, copies that stay."""

    kept: Counter[str]
    left_out: Counter[str]
    copies: int


@dataclass
class Chooser:
    """Goes through the pieces of all domains, and remembers the passages that came before.

    A text is kept once, in the first document that has it: a copy must not lie on both sides of the split, and counts
    nothing twice. With `keep_duplicates`, copies on one side stay, and are counted all the same.
    """

    cfg: TextConfig
    keep_duplicates: bool
    seen: dict[bytes, str] = field(default_factory=dict)  # the side of the split that each passage lies on

    def choose(self, part: Part, domain: str) -> Chosen:
        """Writes what stays of a piece, and counts it."""
        left_out: Counter[str] = Counter(part.load("read.json")["left_out"])
        copies = 0
        kept: Counter[str] = Counter()
        at = 0
        with part.path("text").open("rb") as text, part.writing("kept") as out:
            for name, passages in part.documents():
                split = self._split(domain, name)
                new: list[bytes] = []
                places: list[tuple[int, int]] = []
                for passage in passages:
                    if self._is_out(passage, split, new):
                        left_out[DUPLICATE] += 1
                    else:
                        new.append(passage.key)
                        places.append((at, passage.n_bytes))
                    at += passage.n_bytes
                size = sum(n_bytes for _, n_bytes in places) + len(SEPARATOR) * max(0, len(places) - 1)
                if size < self.cfg.min_bytes:
                    left_out[TOO_SHORT] += bool(places)
                    continue
                if self.cfg.max_bytes is not None and size > self.cfg.max_bytes:
                    raw = cut(text_of(text.fileno(), places), self.cfg.max_bytes)
                    size = len(raw)
                    # Texts that differ only further on are copies now.
                    start = Passage(hashlib.sha256(raw.strip()).digest()[:16], size)
                    if self._is_out(start, split, []):
                        left_out[DUPLICATE] += 1
                        continue
                    new.append(start.key)
                copies += any(key in self.seen for key in new)
                for key in new:
                    self.seen.setdefault(key, split)
                kept[split] += 1
                out.write(line(astuple(Kept(name, split, places, size))))
        return Chosen(kept, +left_out, copies)

    def _split(self, domain: str, name: str) -> str:
        own = self.cfg.domains[domain].heldout_fraction
        fraction = self.cfg.heldout_fraction if own is None else own
        train, heldout = SPLITS
        return heldout if split_point(self.cfg.split_seed, domain, name) < fraction else train

    def _is_out(self, passage: Passage, split: str, new: list[bytes]) -> bool:
        """Whether a passage is a copy that may not stay."""
        if self.keep_duplicates:
            return self.seen.get(passage.key, split) != split
        return passage.key in self.seen or passage.key in new
