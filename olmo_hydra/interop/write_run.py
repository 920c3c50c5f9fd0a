"""Weights written as a run directory that has never trained, one parameter in memory at a time."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
import yaml

from olmo_hydra.config.identity import plain
from olmo_hydra.interop.companions import FOLDER, Companions
from olmo_hydra.interop.run_weights import path_of
from olmo_hydra.interop.weights import Weights
from olmo_hydra.interop.whole import refuse_no_utf8, whole_folder
from olmo_hydra.tracking.checkpoints import Kind, write_manifest
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.train.checkpoint import CHUNK


def write_run(weights: Weights, folder: Path, beside: Companions, source: str) -> None:
    """Writes config.yaml with the node `model`, checkpoint 0 with the parameters alone, and the tokenizer's files.

    The checkpoint is laid out as `train.checkpoint` lays them out. Whole or not at all.

    Args:
      weights: Read once each.
      folder: The run directory; must not exist, or be empty.
      beside: What goes with the weights.
      source: Where they are from, for people.

    Raises:
      RequestError: The folder cannot be written, a parameter cannot be read, or `source` is no UTF-8.
    """
    refuse_no_utf8(source)
    size = sum(int(np.prod(struct.shape)) * struct.dtype.itemsize for struct in weights.shapes.values())
    with whole_folder(folder, size) as partial:
        run_dir = RunDir(partial)
        _checkpoint(run_dir.checkpoints, weights, {"weights": source})
        beside.copy(partial / FOLDER)
        Record(run_dir).event("imported", step=0, source=source, parameters=weights.model.num_params)
        content = {"model": plain(weights.model), "weights": {"from": source, "special": beside.special}}
        run_dir.config.write_text(yaml.safe_dump(content, sort_keys=False))


class _Later:
    """A parameter that is read when it is its turn to be written. Looks to orbax like an array."""

    def __init__(self, weights: Weights, name: str):
        struct = weights.shapes[name]
        self.shape, self.dtype = struct.shape, np.dtype(struct.dtype)
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.read: Callable[[], np.ndarray] = lambda: weights.read(name)


class _OneByOne(ocp.type_handlers.NumpyHandler):
    """Writes parameters one after the other, and each a chunk after the other.

    Orbax's own handler takes all arrays in memory and encodes all their chunks at once: two and a half times the size
    of a large one, as measured with version 0.12.8.
    """

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Returns when everything is written, so that there is nothing to wait for."""
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            for commit in await super().serialize([value.read()], [info], [arg]):
                await asyncio.to_thread(commit.result)
        return []

    async def _open_and_write(self, value: np.ndarray, tspec: dict[str, Any], ts_context: ts.Context) -> None:
        store = await ts.open(ts.Spec(tspec), create=True, open=True, context=ts_context)
        chunk = store.chunk_layout.write_chunk_template.shape
        starts = itertools.product(*(range(0, n, c) for n, c in zip(value.shape, chunk, strict=True)))
        for start in starts:
            part = tuple(slice(s, min(s + c, n)) for s, c, n in zip(start, chunk, value.shape, strict=True))
            await store[part].write(value[part], can_reference_source_data_indefinitely=True)


def _checkpoint(folder: Path, weights: Weights, meta: dict[str, Any]) -> None:
    leaves = {path_of(name): _Later(weights, name) for name in weights.shapes}
    arrays = (jax.Array, ocp.type_handlers.ArrayHandler())
    registry = ocp.type_handlers.create_type_handler_registry(arrays, (_Later, _OneByOne()))
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add(
        "state", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler(type_handler_registry=registry, use_compression=False)
    )
    handlers.add("meta", ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    place = folder.resolve() / "0"
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(handler_registry=handlers)) as orbax:
        save = ocp.args.PyTreeSave(leaves, save_args={path: ocp.SaveArgs(chunk_byte_size=CHUNK) for path in leaves})
        orbax.save(place, args=ocp.args.Composite(state=save, meta=ocp.args.JsonSave(meta)))
    write_manifest(place, 0, Kind.permanent)
