"""The two conversions, from what people type to what they get."""

from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.companions import FILES, companions
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


def to_hf(place: str, folder: Path, dtype: str | None, run_root: Path) -> str:
    """Writes a Hugging Face folder of the weights in a run, or in another such folder; returns what was done."""
    weights = open_weights(place, run_root)
    beside = companions(weights)
    write_hf(weights, folder, beside, None if dtype is None else np.dtype(dtype))
    tokenizer = "" if any(file.name == FILES[0] for file in beside.files) else "; no tokenizer: the run has none"
    return f"{weights.place}: {weights.model.num_params:,} parameters{tokenizer}: {folder}"
