"""The two conversions, from what people type to what they get."""

from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.companions import companions, with_tokenizer
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.weights import open_weights
from olmo_hydra.interop.write_hf import write_hf
from olmo_hydra.interop.write_run import write_run


def from_hf(folder: Path, run: Path) -> str:
    """Writes a run directory of the weights in a Hugging Face folder; returns what was done."""
    if not folder.is_dir():
        raise RequestError("there is no such folder", key=str(folder), instead="a folder with config.json")
    weights = HFWeights(folder)
    beside = companions(weights)
    write_run(weights, run, beside, f"hf:{folder.resolve()}")
    return f"{weights.model.num_params:,} parameters and {len(beside.files)} other files: {run}"


def to_hf(place: str, folder: Path, run_root: Path, dtype: str | None = None, tokenizer: Path | None = None) -> str:
    """Writes a Hugging Face folder of the weights in a run, or in another such folder; returns what was done.

    Args:
      place: As `open_weights` takes it.
      folder: To write; must not exist, or be empty.
      run_root: Where runs lie that are given by name.
      dtype: Of the tensors; None for that of the weights.
      tokenizer: A folder whose tokenizer goes along instead of the weights' own.
    """
    weights = open_weights(place, run_root)
    beside = companions(weights)
    if tokenizer is not None:
        beside = with_tokenizer(beside, tokenizer, weights.model.vocab_size)
    small = write_hf(weights, folder, beside, None if dtype is None else np.dtype(dtype))
    said = f"{weights.place}: {weights.model.num_params:,} parameters"
    if small:
        said += f"; {small:,} of them too small for {dtype}, so that they became 0 or lost digits"
    if not beside.has_tokenizer:
        said += "; no tokenizer: there is none (--tokenizer DIR)"
    return f"{said}: {folder}"
