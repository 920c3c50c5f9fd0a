"""Mixtures: instances of several sources in exact ratios, with bounded repetition and a seed that decides which."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.instances.kinds import Part, Source, Span
from olmo_hydra.data.order import BLOCK, Order

VERSION = "sampled-v1"  # of the rules below: part of the fingerprint of a mixture
UNSHUFFLED = 0  # the number of an epoch by which an order is the permutation of the seed itself


@dataclass(frozen=True)
class Ingredient:
    """One source of a mixture.

    Args:
      label: What it is called in `data.sources`.
      source: Its instances, by files that it numbers from 0.
      first_file: The number of its first file among those of the mixture.
      ratio: Its share of the mixture, in any unit common to all.
      max_repetition: How often the mixture may hold each of its instances, on average; at least 1.
    """

    label: str
    source: Source
    first_file: int
    ratio: float
    max_repetition: float = 1.0


class Mixture:
    """A source made of others. Its instances are numbered ingredient by ingredient, and each repeat has its own number.

    Ingredient i is sampled without replacement by the permutation of PCG64(seed + i): all of it as often as it fits,
    and for the rest its beginning. So do `MixingInstanceSource` and `SamplingInstanceSource` of allenai/OLMo-core 3.0.0
    (data/composable). Sizes follow `sample_sizes`.

    Args:
      ingredients: The sources.
      seq_len: Tokens an instance.
      seed: Decides which instances are in.
      folder: Where the permutations are kept, as orders are.
      chunk: Consecutive instances that are taken together.
      tokens: Size of the mixture; None: as large as ratios and repetitions allow, and no larger than its sources.

    Raises:
      RequestError: An ingredient is empty, or `tokens` cannot be had: names what can, and the repetition it would take.
    """

    def __init__(
        self,
        ingredients: Sequence[Ingredient],
        *,
        seq_len: int,
        seed: int,
        folder: Path,
        chunk: int = 1,
        tokens: int | None = None,
    ):
        self._ingredients = list(ingredients)
        available = [len(one.source) // chunk for one in ingredients]
        sizes = sample_sizes(ingredients, available, chunk * seq_len, tokens)
        self.sizes = [size * chunk for size in sizes]  # instances of each ingredient
        self._starts = [0, *accumulate(self.sizes)]
        self._orders = [Order(folder, len(one.source), seed=seed + i, chunk=chunk) for i, one in enumerate(ingredients)]
        held = [self._text(i, seq_len) for i in range(len(ingredients))]
        self.padding = len(self) * seq_len - sum(in_instances for in_instances, _ in held)
        self.dropped = sum(one.source.dropped for one in ingredients) + sum(unused for _, unused in held)
        self.parts = [
            Part(self._starts[i], self.sizes[i], tuple(one.first_file + n for n in _files(one.source)))
            for i, one in enumerate(ingredients)
        ]

    def __len__(self) -> int:
        return self._starts[-1]

    def spans(self, i: int) -> list[Span]:
        number = bisect_right(self._starts, i) - 1
        one, order = self._ingredients[number], self._orders[number]
        (sampled,) = order.read(UNSHUFFLED, (i - self._starts[number]) % order.length, 1).tolist()
        return [Span(one.first_file + span.file, span.start, span.length) for span in one.source.spans(sampled)]

    def holding(self, span: Span) -> list[int]:
        found = []
        for number, (one, part) in enumerate(zip(self._ingredients, self.parts, strict=True)):
            if span.file in part.files:
                held = one.source.holding(span._replace(file=span.file - one.first_file))
                found += self._copies(number, held) if held else []
        return found

    def _copies(self, ingredient: int, instances: Sequence[int]) -> list[int]:
        """The numbers here of instances of an ingredient, given by number: as many of each as the mixture holds."""
        order, size, first = self._orders[ingredient], self.sizes[ingredient], self._starts[ingredient]
        once = min(size, order.length)
        blocks = ((start, order.read(UNSHUFFLED, start, min(BLOCK, once - start))) for start in range(0, once, BLOCK))
        found = [start + at for start, block in blocks for at in np.flatnonzero(np.isin(block, instances)).tolist()]
        return sorted(first + at + before for at in found for before in range(0, size - at, order.length))

    def _text(self, number: int, seq_len: int) -> tuple[int, int]:
        """Tokens that an ingredient's instances hold here, repeats included, and tokens of those that are not in."""
        source, order, size = self._ingredients[number].source, self._orders[number], self.sizes[number]
        order.make(UNSHUFFLED)
        if source.padding == 0:
            return size * seq_len, max(len(source) - size, 0) * seq_len
        in_all = len(source) * seq_len - source.padding
        rest = 0
        for start in range(0, size % order.length, BLOCK):
            block = order.read(UNSHUFFLED, start, min(BLOCK, size % order.length - start))
            rest += sum(span.length for i in block.tolist() for span in source.spans(i))
        return size // order.length * in_all + rest, in_all - rest if size < order.length else 0


def sample_sizes(
    ingredients: Sequence[Ingredient], available: Sequence[int], unit: int, tokens: int | None
) -> list[int]:
    """How much of each ingredient a mixture holds.

    The largest total that every ingredient can give its ratio of, within its repetitions, but no more than all there is
    or than `tokens`; shared out by largest remainder. Ratios are taken as the decimal fractions they are written as, so
    that no rounding of binary numbers decides. `calculate_sample_sizes` of allenai/OLMo-core 3.0.0
    (data/composable/utils.py) has the same total; it rounds every size down.

    Args:
      ingredients: Their ratios and repetitions.
      available: Pieces that each has.
      unit: Tokens a piece.
      tokens: What is asked for, or None.
    """
    for one, pieces in zip(ingredients, available, strict=True):
        if not pieces:
            raise RequestError(f"holds less than the {unit:,} tokens of a piece", key=f"data.sources.{one.label}")
    ratios = [Fraction(str(one.ratio)) for one in ingredients]
    shares = [ratio / sum(ratios) for ratio in ratios]
    rooms = [floor(n * Fraction(str(one.max_repetition))) for one, n in zip(ingredients, available, strict=True)]
    limits = [floor(room / share) for room, share in zip(rooms, shares, strict=True)]
    if tokens is None:
        total = min(sum(available), *limits)
    else:
        total = tokens // unit
        if total > min(limits):
            raise _too_much(ingredients, available, shares, tokens, limits, unit)
    ideal = [total * share for share in shares]
    sizes = [floor(size) for size in ideal]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (sizes[i] - ideal[i], i))
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes


def _too_much(
    ingredients: Sequence[Ingredient],
    available: Sequence[int],
    shares: Sequence[Fraction],
    tokens: int,
    limits: Sequence[int],
    unit: int,
) -> RequestError:
    total = tokens // unit
    short = [i for i, limit in enumerate(limits) if limit < total]
    needed = {i: ceil(Fraction(100 * ceil(total * shares[i]), available[i])) / 100 for i in short}
    raised = " ".join(f"data.sources.{ingredients[i].label}.max_repetition={needed[i]}" for i in short)
    worst = ingredients[min(short, key=lambda i: limits[i])]
    return RequestError(
        f"more than the ratios allow: {worst.label} lacks most, with max_repetition={worst.max_repetition}",
        key="data.mixture_tokens",
        value=tokens,
        instead=f"data.mixture_tokens={min(limits) * unit} at most, or {raised}",
    )


def _files(source: Source) -> list[int]:
    return sorted({number for part in source.parts for number in part.files})
