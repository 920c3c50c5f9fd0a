"""The first state of a run whose parameters come from another run, or from published weights."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.init import InitConfig, Load
from olmo_hydra.interop.agreement import differences, differing_meaning, differing_shapes
from olmo_hydra.interop.names import TABLES, in_layout
from olmo_hydra.interop.places import find_run, fingerprint
from olmo_hydra.interop.run_weights import RunWeights, path_of
from olmo_hydra.interop.weights import Weights, open_weights
from olmo_hydra.model.params import named
from olmo_hydra.train.state import Program, State, by_path

KEPT = ("block_norm", "norm_eps")  # fields that no training changes on its way


class Initial:
    """Where a run starts that does not start from random parameters. Nothing is read before `state`.

    Attributes:
      description: What is taken from where, for the record; `differs` says, there and here, in which fields the two
        models differ although their parameters fit (YaRN, say), and which arrays change their dtype.

    Raises:
      RequestError: There are no such weights, they do not fit the run's model, or they lack the moments that
        `init.load` wants.
    """

    def __init__(self, cfg: InitConfig, program: Program, run_root: Path):
        assert cfg.source is not None
        self._program, self._model = program, program.config.model
        self._weights = opened(cfg.source, run_root)
        theirs = self._weights.model
        if unfit := differing_shapes(theirs, self._model) + differences(theirs, self._model, KEPT):
            raise RequestError(
                "its model is another one: " + "; ".join(unfit),
                key="init.from",
                value=cfg.source,
                instead="the model that it has, as model=... and model.KEY=... say",
            )
        self._roots = {"params": "params"}  # of trees in the structure of the parameters: here, and there
        self._single: dict[str, str] = {}  # paths of single arrays: here, and there
        if cfg.load is Load.weights_and_moments:
            self._plan_moments(cfg.source)
        self.description: dict[str, Any] = {
            "from": self._weights.place,
            "fingerprint": fingerprint(cfg.source, run_root),
            "load": cfg.load.value,
            "differs": differing_meaning(theirs, self._model) + self._rounded(),
        }

    def state(self) -> State:
        """Parameters and, if wanted, moments, read one at a time and laid out as the program says; the rest is new."""
        program = self._program
        shardings, structs = by_path(program.shardings), by_path(program.abstract)
        leaves: dict[str, Any] = {}

        def place(path: str, array: np.ndarray) -> None:
            fitting = array.astype(structs[path].dtype)
            leaves[path] = jax.make_array_from_callback(array.shape, shardings[path], lambda index: fitting[index])

        def fill(root: str) -> None:
            for name in named(program.abstract.params):
                path = f"{root}/{below(name)}"
                place(path, self._fitted(partial(self._read, self._roots[root]), name, structs[path].shape))

        fill("params")
        params = jax.tree.unflatten(jax.tree.structure(program.abstract.params), leaves.values())
        new = jax.jit(program.optimizer.init, out_shardings=program.shardings.opt_state)(params)
        leaves |= {path: leaf for path, leaf in by_path(State(params, new)).items() if path not in leaves}
        del new
        for root in list(self._roots)[1:]:
            fill(root)
        for path, theirs in self._single.items():
            assert isinstance(self._weights, RunWeights)
            place(path, self._weights.read_array(theirs))
        return jax.tree.unflatten(jax.tree.structure(program.abstract), [leaves[path] for path in structs])

    def _plan_moments(self, source: str) -> None:
        """Pairs every array of the moments, and what counts their updates, with one of the checkpoint.

        Optimizers wrap one another (`skip_step_adamw` around `adamw`), so the moments are found by what they are: trees
        of the parameters' structure. What lies beside them belongs to them; what lies around does not.
        """
        run = self._weights
        assert isinstance(run, RunWeights)
        ours, theirs = by_path(self._program.abstract), run.arrays
        our_roots, their_roots = moment_roots(ours), moment_roots(theirs)
        if lacking := sorted(our_roots.keys() - their_roots.keys()):
            raise _without(source, lacking)
        for moment, root in our_roots.items():
            self._roots[root] = their_roots[moment]
            beside, their_beside = (path.rpartition("/")[0] for path in (root, their_roots[moment]))
            for path in ours:
                folder, _, leaf = path.rpartition("/")
                if folder == beside:
                    self._single[path] = f"{their_beside}/{leaf}"
        if lacking := sorted(set(self._single.values()) - theirs.keys()):
            raise _without(source, lacking)

    def _rounded(self) -> list[str]:
        """A sentence for each change of dtype between what is read and what the run has."""
        tail = below("embedding.weight")  # one tree has one dtype
        there, here = self._described(), by_path(self._program.abstract)
        return [
            f"{PurePosixPath(root).name} are {there[f'{theirs}/{tail}'].dtype} and {here[f'{root}/{tail}'].dtype}"
            for root, theirs in self._roots.items()
            if there[f"{theirs}/{tail}"].dtype != here[f"{root}/{tail}"].dtype
        ]

    def _described(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        if isinstance(self._weights, RunWeights):
            return self._weights.arrays
        return {path_of(name): struct for name, struct in self._weights.shapes.items()}

    def _read(self, root: str, name: str) -> np.ndarray:
        if root == "params":
            return self._weights.read(name)
        assert isinstance(self._weights, RunWeights)
        return self._weights.read_array(f"{root}/{below(name)}")

    def _fitted(self, read: Callable[[str], np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A parameter, or a moment of it, stacked by our window pattern and with our padding of the vocabulary."""
        array = in_layout(read, name, self._weights.model, self._model)
        if name not in TABLES or array.shape == shape:
            return array
        ids = np.arange(self._model.vocab_size)
        axis = TABLES.index(name)  # a row of the input table, a column of the head
        fitted = np.zeros(shape, array.dtype)
        fitted[(slice(None),) * axis + (ids,)] = array.take(ids, axis=axis)
        return fitted


def _without(source: str, lacking: list[str]) -> RequestError:
    return RequestError(
        f"its checkpoint has no moments of this optimizer: {', '.join(lacking)}",
        key="init.from",
        value=source,
        instead="init.load=weights",
    )


def opened(source: str, run_root: Path) -> Weights:
    """The weights that `init.from` names, which must be settled: a run without a step has to be finished."""
    kind, _, place = source.partition(":")
    try:
        weights = open_weights(place, run_root)
    except RequestError as error:
        error.key, error.value, error.has_value = "init.from", source, True
        listed = f"a run that is there: olmo-hydra runs {run_root}, or init.from=run:PATH"
        error.instead = error.instead or (listed if kind == "run" else "init.from=hf:FOLDER, with config.json in it")
        raise
    is_run = isinstance(weights, RunWeights)
    if is_run != (kind == "run"):
        other = "hf" if kind == "run" else "run"
        raise RequestError(
            "holds weights of the other kind", key="init.from", value=source, instead=f"init.from={other}:{place}"
        )
    if isinstance(weights, RunWeights) and find_run(place, run_root)[1] is None and _grows(weights):
        raise RequestError(
            f"the run is not finished, so that its newest checkpoint ({weights.step}) may be another one tomorrow",
            key="init.from",
            value=source,
            instead=f"init.from={source}@{weights.step}",
        )
    return weights


def _grows(weights: RunWeights) -> bool:
    return weights.run_dir.state()[0] in ("Running", "Paused", "Interrupted", "Preempted", "Failed", "Killed")


def moment_roots(paths: Iterable[str]) -> dict[str, str]:
    """Where each moment (`mu`, `nu`) of an optimizer's state has its tree of arrays, from the paths of a state."""
    tail = "/" + below("embedding.weight")
    roots = [path.removesuffix(tail) for path in paths if path.startswith("opt_state/") and path.endswith(tail)]
    return {PurePosixPath(root).name: root for root in roots}


def below(name: str) -> str:
    """The path of a parameter below `params`, and of its moment below the moment's root."""
    return path_of(name).removeprefix("params/")
