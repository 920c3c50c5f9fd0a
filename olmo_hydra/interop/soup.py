"""A soup: the average of the parameters of several trainings of one model (arXiv 2203.05482)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import safetensors
from olmo_hydra.interop.agreement import differing_meaning, differing_shapes
from olmo_hydra.interop.companions import companions
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.interop.weights import Weights, open_weights
from olmo_hydra.interop.write_run import write_run


class Soup:
    """Weights (see `Weights`) that are the average of others; a tensor is averaged when it is read.

    Sums are float64.

    Args:
      ingredients: At least one.
      shares: Relative weight of each; None for equal ones.
      dtype: Of the result; None for the dtype that the first ingredient has a tensor in.

    Raises:
      RequestError: The ingredients are not of one model, or the shares make no average.
    """

    def __init__(
        self, ingredients: Sequence[Weights], shares: Sequence[float] | None = None, dtype: DType | None = None
    ):
        first = ingredients[0]
        for other in ingredients[1:]:
            _refuse_other_model(first, other)
        self.ingredients = list(ingredients)
        self.shares = _normalised(shares, len(self.ingredients))
        self.model = first.model if dtype is None else replace(first.model, param_dtype=dtype)
        self.place = " + ".join(f"{share:.4g} {it.place}" for share, it in zip(self.shares, ingredients, strict=True))
        self.shapes = {
            name: jax.ShapeDtypeStruct(shape.shape, shape.dtype if dtype is None else dtype.value)
            for name, shape in first.shapes.items()
        }

    def read(self, name: str) -> np.ndarray:
        """One averaged tensor. In memory beside the float64 sum is one ingredient's tensor at a time.

        Raises RequestError where a finite average is not finite in the dtype of the result.
        """
        shape = self.shapes[name]
        total = np.zeros(shape.shape, np.float64)
        for share, ingredient in zip(self.shares, self.ingredients, strict=True):
            tensor = ingredient.read(name)
            for index in range(len(total)):  # a layer or a row at a time: no second float64 copy
                total[index] += share * tensor[index].astype(np.float64)
            del tensor  # before the next one is read
        made, done = np.empty(shape.shape, shape.dtype), 0
        try:
            for block in safetensors.blocks(total):
                made[done : done + len(block)] = safetensors.narrowed(block, made.dtype)
                done += len(block)
        except OverflowError:
            raise RequestError(
                f"{name} has averages that are too large for {made.dtype}",
                key="--dtype",
                value=made.dtype,
                instead="--dtype float32" if made.dtype.itemsize < 4 else None,
            ) from None
        return made


def soup(
    places: Sequence[str], run: Path, run_root: Path, shares: Sequence[float] | None = None, dtype: DType | None = None
) -> str:
    """Writes a run directory of the average of the weights at several places; returns what was done.

    What goes with weights (a tokenizer's files) is that of the first. Raises RequestError as `Soup` and `write_run` do,
    and where there is one place only.
    """
    if len(places) < 2:
        raise RequestError("is one place, and an average takes two or more", key="IN", value=" ".join(places))
    ingredients = [open_weights(place, run_root) for place in places]
    made, first = Soup(ingredients, shares, dtype), ingredients[0]
    assert isinstance(first, HFWeights | RunWeights)
    write_run(made, run, companions(first), made.place)
    return f"{made.model.num_params:,} parameters, the average of {len(places)}: {run}"


def _normalised(shares: Sequence[float] | None, count: int) -> list[float]:
    """Shares that add up to one."""
    if shares is None:
        return [1 / count] * count
    written = " ".join(f"{share:g}" for share in shares)
    if len(shares) != count:
        raise RequestError(
            f"{len(shares)} weights for {count} ingredients", key="--weights", value=written, instead="one for each"
        )
    if not all(math.isfinite(share) and share >= 0 for share in shares) or max(shares) == 0:
        raise RequestError(
            "must be numbers from 0 up, not all of them 0",
            key="--weights",
            value=written,
            instead="relative weights, which are divided by their sum: --weights 1 1",
        )
    scaled = [share / max(shares) for share in shares]  # the sum of large ones is not finite
    return [share / math.fsum(scaled) for share in scaled]


def _refuse_other_model(first: Weights, other: Weights) -> None:
    differences = differing_shapes(first.model, other.model) + differing_meaning(first.model, other.model)
    differences = differences or [
        f"{name} has shape {first.shapes[name].shape} and {other.shapes[name].shape}"
        if name in first.shapes and name in other.shapes
        else f"{name} is in one of them only"
        for name in sorted(first.shapes.keys() | other.shapes.keys())
        if getattr(first.shapes.get(name), "shape", None) != getattr(other.shapes.get(name), "shape", None)
    ]
    if differences:
        raise RequestError(
            f"{first.place} and {other.place} are not the same model: {'; '.join(differences[:6])}",
            where=other.place,
            instead="ingredients of one model, best from one training",
        )
