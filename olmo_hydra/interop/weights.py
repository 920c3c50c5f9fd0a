"""Weights of any origin under our names, and where people say they are."""

from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.places import find_run
from olmo_hydra.interop.run_weights import RunWeights


class Weights(Protocol):
    """The parameters of one model, none of them in memory.

    Attributes:
      model: Their model, derived and checked.
      place: Where they lie, for messages.
      shapes: Shape and dtype of each, by our stacked names (`blocks.0.attention.q.weight`), in the model's order.
    """

    model: ModelConfig
    place: str
    shapes: dict[str, jax.ShapeDtypeStruct]

    def read(self, name: str) -> np.ndarray:
        """One parameter, in the dtype it is stored in. May be a view with any strides."""
        ...


def open_weights(place: str, run_root: Path | None = None) -> Weights:
    """The weights at a place; checked to be whole and of the right shapes before any is read.

    Args:
      place: A folder of Hugging Face weights, a run directory with or without `@STEP` (without: its newest
        checkpoint), or a folder `checkpoints/STEP` of a run.
      run_root: Where runs lie that are given by name, with or without the 8 digits at its end.

    Raises:
      RequestError: There is nothing of the kind, or it is damaged.
    """
    folder = Path(place)
    if (folder / "config.json").is_file():
        return HFWeights(folder)
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        raise RequestError("the folder has safetensors files, but no config.json beside them", key=place)
    run_dir, step = find_run(place, run_root)
    return RunWeights(run_dir, step)
