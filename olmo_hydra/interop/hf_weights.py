"""A folder of Hugging Face weights: checked whole before anything is read, then read tensor by tensor."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import safetensors
from olmo_hydra.interop.hf_config import from_hf
from olmo_hydra.interop.names import counterparts
from olmo_hydra.interop.shapes import param_shapes
from olmo_hydra.interop.values import Values

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHOWN = 5  # problems in one message


class HFWeights:
    """`interop.weights.Weights` of a folder as `save_pretrained` writes it: one file, or several with an index.

    Raises:
      RequestError: The config is not one of our models, or a tensor is missing, left over, misshapen or cut off. All
        of it is known from the headers of the files.
    """

    def __init__(self, folder: Path):
        self.folder, self.place = folder, str(folder)
        self.content = read_json(folder / "config.json")
        entries = _entries(folder)
        config = Values(self.content, str(folder / "config.json"))
        if config.whole("num_hidden_layers") > len(entries):  # before anything is made of that many
            raise config.wrong("num_hidden_layers", f"is more than the {len(entries)} tensors of the folder")
        self.model = from_hf(self.content, folder.resolve().name, config.where)
        expected = param_shapes(self.model)
        self._counterparts = counterparts(self.model, expected)
        self._entries: dict[str, list[safetensors.Entry]] = {}
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}
        problems = []
        for name, counterpart in self._counterparts.items():
            shape = counterpart.shape(expected[name].shape)
            for tensor in counterpart.tensors:
                if tensor not in entries:
                    problems.append(f"{tensor} is missing (expected {list(shape)})")
                elif entries[tensor].shape != shape:
                    problems.append(f"{tensor} is {_shown(entries[tensor])}; expected {list(shape)}")
                elif entries[tensor].code not in safetensors.DTYPES:
                    problems.append(f"{tensor} is {_shown(entries[tensor])}; read are {', '.join(safetensors.DTYPES)}")
            found = [entries.pop(tensor) for tensor in counterpart.tensors if tensor in entries]
            if len({entry.code for entry in found}) > 1:
                problems.append(f"the layers of {counterpart.tensors[0]} have different dtypes")
            if not problems:
                self._entries[name] = found
                self.shapes[name] = jax.ShapeDtypeStruct(expected[name].shape, found[0].dtype)
        problems += [f"{tensor} ({_shown(entry)}) belongs to no parameter" for tensor, entry in entries.items()]
        if problems:
            more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            raise RequestError("; ".join(problems[:SHOWN]) + more, where=self.place, instead="a whole copy of it")

    def read(self, name: str) -> np.ndarray:
        """One parameter, in the dtype of the file; a view with the strides of a transposed matrix where it is one."""
        counterpart, entries = self._counterparts[name], self._entries[name]
        if not counterpart.stacked:
            tensor = safetensors.read(entries[0])
            return tensor.T if counterpart.transposed else tensor
        theirs = np.empty((len(entries), *entries[0].shape), entries[0].dtype)
        for layer, entry in zip(theirs, entries, strict=True):
            safetensors.read(entry, out=layer)
        return theirs.swapaxes(1, 2) if counterpart.transposed else theirs


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises RequestError, naming the file, where there is none."""
    try:
        safetensors.refuse_irregular(file)
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", where=str(file)) from error
    except RecursionError as error:
        raise RequestError("is nested too deep", where=str(file)) from error
    except ValueError as error:
        raise RequestError(f"is not JSON: {error}", where=str(file)) from error
    if not isinstance(content, dict):
        raise RequestError("is no JSON object", where=str(file))
    return content


def _entries(folder: Path) -> dict[str, safetensors.Entry]:
    """Every tensor of the folder's files. Where both forms are there the single file counts, as in transformers."""
    if (folder / SINGLE).exists():
        return safetensors.header(folder / SINGLE)
    if not (folder / INDEX).exists():
        raise RequestError(
            f"the folder has neither {SINGLE} nor {INDEX}",
            where=str(folder),
            instead="a folder with safetensors, as save_pretrained of transformers writes it",
        )
    index = folder / INDEX
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise RequestError("has no weight_map", where=str(index))
    entries: dict[str, safetensors.Entry] = {}
    for name in sorted(set(map(str, named.values()))):
        if Path(name).name != name:
            raise RequestError("names a file outside of its folder", key="weight_map", value=name, where=str(index))
        found = safetensors.header(folder / name)
        if twice := sorted(found.keys() & entries.keys()):
            raise RequestError(f"{twice[0]} is in {entries[twice[0]].file.name} as well", where=str(folder / name))
        entries |= found
    for tensor, name in named.items():
        if tensor not in entries or entries[tensor].file.name != name:
            raise RequestError(
                f"{tensor} is not in it, and {INDEX} says so",
                where=str(folder / str(name)),
                instead="the file and the index of one and the same model",
            )
    return entries


def _shown(entry: safetensors.Entry) -> str:
    return f"{entry.code} {list(entry.shape)} in {entry.file.name}"
