"""The 13-grams that held-out and training text of a corpus share: `overlap` over the parts of its pieces."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from olmo_hydra.data.text.overlap import SIZE, Grams, overlap_of
from olmo_hydra.data.text.parts import Part


def write_grams(parts: Iterable[Part], file: Path) -> None:
    """Writes the grams of all held-out text to `file`, unless it is there."""
    if not file.is_file():
        grams = Grams.of(text for part in parts for _, text in _texts(part, "heldout"))
        partial = file.with_suffix(".partial")
        with partial.open("wb") as out:
            np.save(out, grams.hashes_G)
        partial.replace(file)


def find(part: Part, file: Path) -> None:
    """Finds the grams of `file` in the training text of a piece."""
    grams = _grams(file)
    # Without held-out text there is nothing to look for.
    texts = (text for _, text in _texts(part, "train")) if len(grams.hashes_G) else ()
    places_G = grams.found(texts)
    part.save("shared", places_G.astype("<i8").tobytes())


def compare(parts: Sequence[tuple[str, Part]], file: Path) -> dict[str, Any]:
    """Of each held-out domain, what `overlap.overlap_of` gives.

    Args:
      parts: Of all pieces, with their domains.
      file: The grams of the held-out text.
    """
    grams = _grams(file)
    of_domain: dict[str, list[Part]] = {}
    for domain, part in parts:
        of_domain.setdefault(domain, []).append(part)
    masks = {
        domain: grams.mask(np.fromfile(part.path("shared"), "<i8") for part in mine)
        for domain, mine in of_domain.items()
    }
    found = {
        domain: overlap_of((document for part in mine for document in _texts(part, "heldout")), grams, masks)
        for domain, mine in of_domain.items()
    }
    return {"gram": SIZE, "domains": {domain: counts for domain, counts in found.items() if counts["documents"]}}


def _texts(part: Part, split: str) -> Iterator[tuple[str, str]]:
    for name, raw in part.texts(split):
        yield name, raw.decode()


@functools.lru_cache(maxsize=1)
def _grams(file: Path) -> Grams:
    return Grams(np.load(file))
