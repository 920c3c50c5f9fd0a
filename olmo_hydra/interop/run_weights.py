"""The checkpoints of a run directory, read array by array."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import yaml
from etils import epath

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.model_node import model_config
from olmo_hydra.interop.shapes import param_shapes
from olmo_hydra.tracking.run_dir import RunDir

IDENTITY = re.compile(r"-[0-9a-f]{8}$")  # at the end of a run directory's name
PREFIX, SUFFIX = "params/", "/value"  # around a parameter's name, with slashes for its dots, in a checkpoint


class RunWeights:
    """`interop.weights.Weights` of one checkpoint, and every other array in it by its path.

    Attributes:
      run_dir: The run.
      step: Updates done.
      arrays: Shape and dtype of every array of the checkpoint, by path (`opt_state/...`, `params/...`).

    Raises:
      RequestError: There is no whole checkpoint of the step, or its parameters are not those of the run's model.
    """

    def __init__(self, run_dir: RunDir, step: int | None = None):
        self.run_dir = run_dir
        self.model = model_config(frozen(run_dir)["model"], str(run_dir.config))
        self._reader = ocp.PyTreeCheckpointHandler()
        steps = whole_steps(run_dir)
        if not steps:
            raise RequestError("the run has no checkpoint yet", where=str(run_dir.path))
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps))
            raise RequestError(f"the run has no checkpoint {step}, it has {there}", where=str(run_dir.checkpoints))
        self.step = steps[-1] if step is None else step
        self.place = f"{run_dir.path}@{self.step}"
        self.arrays = self._described()
        self.shapes = {name: self.arrays[path] for name, path in self._paths().items()}

    def read(self, name: str) -> np.ndarray:
        """One parameter, in the dtype it was saved in."""
        return self.read_array(path_of(name))

    def read_array(self, path: str) -> np.ndarray:
        """One array of `arrays`. Raises RequestError where the checkpoint is damaged."""
        restore = ocp.args.PyTreeRestore(
            {path: self.arrays[path]},
            restore_args={path: ocp.RestoreArgs(restore_type=np.ndarray)},
            partial_restore=True,
        )
        try:
            array: np.ndarray = self._reader.restore(self._state, args=restore)[path]
        except Exception as error:  # of many types, by what is damaged
            raise self._damaged(f"{path} cannot be read: {type(error).__name__}") from error
        return array

    def _described(self) -> dict[str, jax.ShapeDtypeStruct]:
        try:
            tree = self._reader.metadata(self._state).tree
            return {path: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype)) for path, leaf in tree.items()}
        except Exception as error:  # of many types, by what is damaged
            raise self._damaged(f"its index cannot be read: {type(error).__name__}") from error

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
    def _state(self) -> epath.Path:
        return epath.Path(self.run_dir.checkpoints.absolute()) / str(self.step) / "state"

    def _damaged(self, problem: str) -> RequestError:
        return RequestError(problem, where=str(self.run_dir.checkpoints / str(self.step)), instead="a copy of it")


def whole_steps(run_dir: RunDir) -> list[int]:
    """The steps of a run's checkpoints, in order. One that is being written has another name."""
    if not run_dir.checkpoints.is_dir():
        return []
    return sorted(int(folder.name) for folder in run_dir.checkpoints.iterdir() if folder.name.isdecimal())


def path_of(name: str) -> str:
    """Where a checkpoint keeps a parameter."""
    return PREFIX + name.replace(".", "/") + SUFFIX


def frozen(run_dir: RunDir) -> dict[str, Any]:
    """The content of a run's config.yaml. Raises RequestError where it is none."""
    with run_dir.config.open() as file:  # an open file, so that an error names it
        content = yaml.safe_load(file)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise RequestError("has no node `model`", where=str(run_dir.config))
    return content


def find_run(place: str, run_root: Path | None) -> tuple[RunDir, int | None]:
    """The run, and the step if one is named: `RUN`, `RUN@STEP`, or `RUN/checkpoints/STEP`.

    Args:
      place: RUN is a run directory, or with `run_root` the name of one in it, with or without the 8 digits at its end.
      run_root: Where runs lie that are given by name.

    Raises:
      RequestError: There is no such run, there are several, or the step is no number.
    """
    folder = Path(place)
    if folder.name.isdecimal() and folder.parent.name == "checkpoints":
        return _run(folder.parent.parent, place, run_root), int(folder.name)
    run, at, step = place.rpartition("@")
    if not at or (folder / "config.yaml").is_file():
        return _run(folder, place, run_root), None
    if not step.isdecimal():
        raise RequestError("the step after @ is no whole number", key=place, instead=f"{run}@1000, or {run}")
    return _run(Path(run), place, run_root), int(step)


def _run(folder: Path, place: str, run_root: Path | None) -> RunDir:
    if (folder / "config.yaml").is_file():
        return RunDir(folder)
    looked_for = ["a folder with config.json (Hugging Face)", "a run directory (config.yaml)"]
    if run_root is not None and len(folder.parts) == 1:
        named = sorted(path.parent for path in run_root.glob("*/config.yaml"))
        found = [path for path in named if path.name == folder.name]
        found = found or [path for path in named if IDENTITY.sub("", path.name) == folder.name]
        if len(found) == 1:
            return RunDir(found[0])
        if found:
            names = ", ".join(path.name for path in found)
            raise RequestError(f"several runs of {run_root} have this name: {names}", key=place, instead="one of them")
        looked_for.append(f"a run of that name in {run_root}")
    raise RequestError(f"holds no weights: looked for {', '.join(looked_for)}", key=place)
