"""The first state of a run whose parameters come from another run, or from published weights."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.init import InitConfig, Load
from olmo_hydra.interop.agreement import differing_meaning, differing_shapes
from olmo_hydra.interop.names import TABLES, in_layout
from olmo_hydra.interop.run_weights import RunWeights, path_of
from olmo_hydra.interop.weights import Weights, open_weights
from olmo_hydra.model.params import named
from olmo_hydra.train.state import Program, State, by_path

Read = Callable[[str], np.ndarray]
GROWING = ("Running", "Paused", "Interrupted", "Failed", "Killed")  # states of a run that may still save checkpoints


class Initial:
    """Where a run starts that does not start from random parameters. Nothing is read before `state`.

    Attributes:
      description: What is taken from where, for the record; `model_differs` says in which fields the two models differ
        although their parameters fit (YaRN, say), there and here.

    Raises:
      RequestError: There are no such weights, they do not fit the run's model, or they lack the moments that
        `init.load` wants.
    """

    def __init__(self, cfg: InitConfig, program: Program, run_root: Path):
        assert cfg.source is not None
        self._program, self._model = program, program.config.model
        self._weights = opened(cfg.source, run_root)
        if differences := differing_shapes(self._weights.model, self._model):
            raise RequestError(
                "its model is another one: " + "; ".join(differences),
                key="init.from",
                value=cfg.source,
                instead="the model that it has, as model=... and model.KEY=... say",
            )
        self._roots: dict[str, Read] = {"params": self._weights.read}
        self._single: dict[str, str] = {}
        if cfg.load is Load.weights_and_moments:
            self._plan_moments(cfg.source)
        self.description: dict[str, Any] = {
            "from": self._weights.place,
            "load": cfg.load.value,
            "model_differs": differing_meaning(self._weights.model, self._model),
        }

    def state(self) -> State:
        """Parameters and, if wanted, moments, read one at a time and laid out as the program says; the rest is new."""
        program = self._program
        shardings, structs = by_path(program.shardings), by_path(program.abstract)
        leaves: dict[str, Any] = {}

        def place(path: str, array: np.ndarray) -> None:
            leaves[path] = jax.device_put(array.astype(structs[path].dtype), shardings[path])

        def fill(root: str) -> None:
            for name in named(program.abstract.params):
                path = f"{root}/{below(name)}"
                place(path, self._fitted(self._roots[root], name, structs[path].shape))

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
        lacking = sorted(our_roots.keys() - their_roots.keys())
        if lacking:
            raise RequestError(
                f"its checkpoint has no moments {', '.join(lacking)} of this optimizer",
                key="init.from",
                value=source,
                instead="init.load=weights",
            )
        for moment, root in our_roots.items():
            their_root = their_roots[moment]
            self._roots[root] = partial(_read_below, run, their_root)
            beside, their_beside = root.rpartition("/")[0], their_root.rpartition("/")[0]
            for path in ours:
                folder, _, leaf = path.rpartition("/")
                if folder == beside:
                    self._single[path] = f"{their_beside}/{leaf}"

    def _fitted(self, read: Read, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A parameter, or a moment of it, stacked by our window pattern and with our padding of the vocabulary."""
        array = in_layout(read, name, self._weights.model, self._model)
        if name not in TABLES or array.shape == shape:
            return array
        ids = np.arange(self._model.vocab_size)
        axis = TABLES.index(name)  # a row of the input table, a column of the head
        fitted = np.zeros(shape, array.dtype)
        fitted[(slice(None),) * axis + (ids,)] = array.take(ids, axis=axis)
        return fitted


def _read_below(run: RunWeights, root: str, name: str) -> np.ndarray:
    return run.read_array(f"{root}/{below(name)}")


def opened(source: str, run_root: Path) -> Weights:
    """The weights that `init.from` names, which must be settled: a run without a step has to be finished."""
    kind, _, place = source.partition(":")
    try:
        weights = open_weights(place, run_root)
    except RequestError as error:
        error.key, error.value, error.has_value = "init.from", source, True
        error.instead = error.instead or f"a run that is there: olmo-hydra runs {run_root}, or init.from=run:PATH"
        raise
    is_run = isinstance(weights, RunWeights)
    if is_run != (kind == "run"):
        other = "hf" if kind == "run" else "run"
        raise RequestError(
            "holds weights of the other kind", key="init.from", value=source, instead=f"init.from={other}:{place}"
        )
    if isinstance(weights, RunWeights) and weights.run_dir.state()[0] in GROWING and "@" not in place:
        raise RequestError(
            f"the run is not finished, so that its newest checkpoint ({weights.step}) may be another one tomorrow",
            key="init.from",
            value=source,
            instead=f"init.from={source}@{weights.step}",
        )
    return weights


def moment_roots(paths: Iterable[str]) -> dict[str, str]:
    """Where each moment (`mu`, `nu`) of an optimizer's state has its tree of arrays, from the paths of a state."""
    tail = "/" + below("embedding.weight")
    roots = [path.removesuffix(tail) for path in paths if path.startswith("opt_state/") and path.endswith(tail)]
    return {PurePosixPath(root).name: root for root in roots}


def below(name: str) -> str:
    """The path of a parameter below `params`, and of its moment below the moment's root."""
    return path_of(name).removeprefix("params/")
