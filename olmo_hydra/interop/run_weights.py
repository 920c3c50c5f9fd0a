"""The checkpoints of a run directory, read array by array."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.model_node import model_config
from olmo_hydra.interop.places import frozen
from olmo_hydra.interop.shapes import param_shapes
from olmo_hydra.tracking.checkpoints import damage, steps
from olmo_hydra.tracking.run_dir import RunDir

PREFIX, SUFFIX = "params/", "/value"  # around a parameter's name, with slashes for its dots, in a checkpoint


class RunWeights:
    """`interop.weights.Weights` of one checkpoint, and every other array in it by its path.

    All files of the checkpoint's state are compared with their hashes before anything is taken from them, also where
    only the parameters are wanted: they share files with the moments, and weights that are passed on must be right.

    Read without orbax, which opens all arrays at once in an event loop of its own: where one is damaged it closes the
    loop on the others, and asyncio prints a traceback for each.

    Attributes:
      run_dir: The run.
      step: Updates done.
      arrays: Shape and dtype of every array of the checkpoint, by path (`opt_state/...`, `params/...`).

    Raises:
      RequestError: There is no checkpoint of the step, it is damaged, or its parameters are not those of the run's
        model.
    """

    def __init__(self, run_dir: RunDir, step: int | None = None):
        self.run_dir = run_dir
        self.model = model_config(frozen(run_dir)["model"], str(run_dir.config))
        there = steps(run_dir.checkpoints)
        if not there:
            raise RequestError("the run has no checkpoint yet", where=str(run_dir.path))
        if step is not None and step not in there:
            known = ", ".join(map(str, there))
            raise RequestError(f"the run has no checkpoint {step}, it has {known}", where=str(run_dir.checkpoints))
        self.step = there[-1] if step is None else step
        self.place = f"{run_dir.path}@{self.step}"
        if fault := damage(self._folder, below="state/"):
            raise RequestError(str(fault), where=str(self._folder), instead="a copy of it, or another step: RUN@STEP")
        self._context = ts.Context()
        self.arrays = self._described()
        self.shapes = {name: self.arrays[path] for name, path in self._paths().items()}

    def read(self, name: str) -> np.ndarray:
        """One parameter, in the dtype it was saved in."""
        return self.read_array(path_of(name))

    def read_array(self, path: str) -> np.ndarray:
        """One array of `arrays`. Raises RequestError where the checkpoint is damaged or gone."""
        try:
            array: np.ndarray = self._open(path).result().read(order="C").result()
        except Exception as error:  # of many types, by what is damaged
            raise self._damaged(f"{path} cannot be read: {type(error).__name__}") from error
        return array

    def _described(self) -> dict[str, jax.ShapeDtypeStruct]:
        try:
            tree = json.loads((self._state / "_METADATA").read_bytes())["tree_metadata"]
            paths = ["/".join(part["key"] for part in leaf["key_metadata"]) for leaf in tree.values()]
            opening = {path: self._open(path) for path in paths}
            opened = {path: future.result() for path, future in opening.items()}
            return {path: jax.ShapeDtypeStruct(it.shape, it.dtype.numpy_dtype) for path, it in opened.items()}
        except Exception as error:  # of many types, by what is damaged
            raise self._damaged(f"its index cannot be read: {type(error).__name__}") from error

    def _open(self, path: str) -> Any:
        """A future of the array's store."""
        database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{self._state}/"}}
        spec = {"driver": "zarr", "kvstore": {**database, "path": f"{path}/"}}
        return ts.open(spec, read=True, open=True, context=self._context)

    def _paths(self) -> dict[str, str]:
        """The path of each parameter, after a comparison with the model's."""
        expected = param_shapes(self.model)
        for name, struct in expected.items():
            found = self.arrays.get(path_of(name))
            if found is None:
                raise self._damaged(f"{name} is missing (expected {list(struct.shape)})")
            if found.shape != struct.shape:
                raise self._damaged(f"{name} is {list(found.shape)}; expected {list(struct.shape)}")
        paths = {name: path_of(name) for name in expected}
        if extra := sorted({path for path in self.arrays if path.startswith(PREFIX)} - set(paths.values())):
            raise self._damaged(f"{extra[0]} belongs to no parameter of the model")
        return paths

    @property
    def _state(self) -> Path:
        return self._folder.resolve() / "state"

    @property
    def _folder(self) -> Path:
        return self.run_dir.checkpoints / str(self.step)

    def _damaged(self, problem: str) -> RequestError:
        if not self._folder.exists():
            return RequestError(
                f"checkpoint {self.step} is gone: it was removed while it was read",
                where=str(self.run_dir.checkpoints),
                instead="one that the run keeps (checkpoint.keep), or a copy of it",
            )
        return RequestError(problem, where=str(self._folder), instead="a copy of it")


def path_of(name: str) -> str:
    """Where a checkpoint keeps a parameter."""
    return PREFIX + name.replace(".", "/") + SUFFIX
