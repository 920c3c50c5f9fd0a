"""Weights written as a folder that transformers loads, one parameter in memory at a time."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import safetensors
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.hf_config import to_hf
from olmo_hydra.interop.hf_weights import INDEX, SINGLE
from olmo_hydra.interop.names import TABLES, counterparts
from olmo_hydra.interop.weights import Weights
from olmo_hydra.interop.whole import whole_folder

SHARD_BYTES = 5_000_000_000  # as transformers 4.57 cuts


@dataclass(frozen=True)
class _Tensor:
    """One tensor to write: a layer of our parameter `source`, or all of it (`layer` is None)."""

    name: str
    source: str
    layer: int | None
    transposed: bool
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


def write_hf(
    weights: Weights, folder: Path, beside: Companions, dtype: np.dtype | None = None, shard_bytes: int = SHARD_BYTES
) -> int:
    """Writes config.json, the tensors with their index, and what goes with them; whole or not at all.

    Rows of the tables that only pad the vocabulary are left out, as in what is published of Olmo 3.

    Args:
      weights: Read once each.
      folder: Must not exist, or be empty.
      beside: Files that are copied, and the ids that config.json names.
      dtype: Of the tensors; None for that of `weights`.
      shard_bytes: A file has no more than this, unless one tensor has.

    Returns:
      How many numbers are too small for `dtype` to hold them with all of its digits.

    Raises:
      RequestError: The format has no word for the model, the folder cannot be written, or a number is too large for
        `dtype`.
    """
    plan = _plan(weights, dtype)
    dtypes = {tensor.dtype.name for tensor in plan}
    content = to_hf(weights.model, dtypes.pop() if len(dtypes) == 1 else "float32", beside.special)
    with whole_folder(folder, sum(tensor.size for tensor in plan)) as partial:
        entries, small = _create(partial, plan, shard_bytes), 0
        for source in weights.shapes:
            array = weights.read(source)
            for tensor in plan:
                if tensor.source == source:
                    part = array if tensor.layer is None else array[tensor.layer]
                    part = part.T if tensor.transposed else part
                    small += _write(entries[tensor.name], part[: tensor.shape[0]], tensor.name)
            del array, part
        beside.copy(partial)
        if not (partial / "generation_config.json").exists():
            ids = {key: value for key, value in beside.special.items() if value is not None}
            _json(partial / "generation_config.json", {"_from_model_config": True, **ids})
        files = sorted({entry.file for entry in entries.values()})
        if len(files) > 1:
            index = {"metadata": {"total_size": sum(tensor.size for tensor in plan)},
                     "weight_map": {name: entry.file.name for name, entry in entries.items()}}  # fmt: skip
            _json(partial / INDEX, index)
        _json(partial / "config.json", content)
    return small


def _plan(weights: Weights, dtype: np.dtype | None) -> list[_Tensor]:
    """The tensors in the order of the model."""
    plan: dict[int, list[_Tensor]] = {}
    for source, counterpart in counterparts(weights.model, weights.shapes).items():
        struct = weights.shapes[source]
        shape = counterpart.shape(struct.shape)
        if source in TABLES:
            shape = (weights.model.vocab_size, *shape[1:])
        for position, name in enumerate(counterpart.tensors):
            layer = position if counterpart.stacked else None
            tensor = _Tensor(name, source, layer, counterpart.transposed, shape, dtype or np.dtype(struct.dtype))
            plan.setdefault(_place(name, weights.model.n_layers), []).append(tensor)
    return [tensor for place in sorted(plan) for tensor in plan[place]]


def _place(name: str, n_layers: int) -> int:
    """Where in the model a tensor stands: 0 the input table, then the layers, then the rest."""
    if name.startswith("model.layers."):
        return int(name.split(".")[2]) + 1
    return 0 if "embed" in name else n_layers + 1


def _create(folder: Path, plan: list[_Tensor], shard_bytes: int) -> dict[str, safetensors.Entry]:
    """The empty files, and where in them each tensor goes."""
    shards: list[list[_Tensor]] = [[]]
    for tensor in plan:
        if shards[-1] and sum(other.size for other in shards[-1]) + tensor.size > shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    names = [SINGLE] if len(shards) == 1 else [
        f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)
    ]  # fmt: skip
    entries: dict[str, safetensors.Entry] = {}
    for name, shard in zip(names, shards, strict=True):
        # Wide elements first, so that each tensor begins at a multiple of its element.
        ordered = sorted(shard, key=lambda tensor: -tensor.dtype.itemsize)
        entries |= safetensors.create(folder / name, {tensor.name: (tensor.dtype, tensor.shape) for tensor in ordered})
    return {tensor.name: entries[tensor.name] for tensor in plan}


def _write(entry: safetensors.Entry, tensor: np.ndarray, name: str) -> int:
    try:
        return safetensors.write(entry, tensor)
    except OverflowError:
        raise RequestError(f"{name} has numbers that are too large for {entry.dtype}", key="--dtype") from None


def _json(file: Path, content: dict) -> None:
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError:
        raise RequestError(f"{file.name} would have a number that is not finite, and JSON has none") from None
    file.write_text(text + "\n")
