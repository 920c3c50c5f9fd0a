"""What a training run carries from step to step, and how it is made."""

import zlib
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from olmo_hydra.config.hardware import Platform
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.sharding import param_sharding, replicated
from olmo_hydra.model import decoder, kernels
from olmo_hydra.model.layout import Layout
from olmo_hydra.model.params import param_axes, param_names
from olmo_hydra.optim import build as build_optimizer
from olmo_hydra.optim import decay_mask

Tree = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything an update changes. The step is not in it: it is the loop's, and the checkpoint's."""

    params: nnx.State
    opt_state: Tree


def by_path(state: State) -> dict[str, Any]:
    """The leaves of a state by the path under which a checkpoint keeps them (`params/embedding/weight/value`)."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@dataclass(frozen=True)
class Program:
    """What never changes during a run: the model's structure, the optimizer, and where the state lies."""

    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformationExtraArgs
    abstract: State
    shardings: State
    seed: int
    config: Config
    mesh: Mesh

    def init(self) -> State:
        """The state before the first update, drawn from the run's seed, each array made where it lies."""

        def make() -> State:
            params = nnx.split(_model(self.config, self.mesh), nnx.Param)[1]
            return State(params, self.optimizer.init(params))

        lowered, options = jax.jit(make, out_shardings=self.shardings).lower(), dict[str, str | bool]()
        if self.config.hardware.platform is Platform.cpu:
            # It runs once. Half the seconds of LLVM's full effort, and the same bytes; level 0 gives others.
            options["xla_backend_optimization_level"] = "1"
        return lowered.compile(compiler_options=options)()


def stream(seed: int, purpose: str) -> jax.Array:
    """The random key of one purpose: streams are folded in by name, never carried along."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(purpose.encode()))


def make_program(config: Config, mesh: Mesh) -> Program:
    """Plans the run without allocating anything.

    Raises:
      RequestError: `optim.no_decay` names no parameter.
    """
    graphdef, params = nnx.split(nnx.eval_shape(lambda: _model(config, mesh)), nnx.Param)
    optimizer = build_optimizer(config.optim, decay_mask(config.optim, param_names(params)))
    abstract = State(params, jax.eval_shape(optimizer.init, params))
    return Program(graphdef, optimizer, abstract, _shardings(abstract, mesh), config.train.seed, config, mesh)


def _model(config: Config, mesh: Mesh) -> decoder.Decoder:
    rngs, hardware = nnx.Rngs(params=stream(config.train.seed, "init")), config.hardware
    attend = kernels.build(hardware, mesh)
    return decoder.build(
        config.model,
        rngs=rngs,
        layer_loop=hardware.layer_loop,
        remat=hardware.remat,
        on_host=hardware.kept_on_host,
        attend=attend,
        positions=config.data.document_positions,
        layout=Layout(mesh),
        loss_chunk=hardware.loss_chunk,
    )


def _shardings(state: State, mesh: Mesh) -> State:
    """Moments lie where their parameters do; what is no moment (counts, windows) is replicated."""
    is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
    axes = jax.tree.leaves(param_axes(state.params), is_leaf=is_axes)
    paths = jax.tree_util.tree_leaves_with_path(state.params)
    by_path: dict[tuple, NamedSharding] = {
        path: param_sharding(mesh, names, leaf.shape) for (path, leaf), names in zip(paths, axes, strict=True)
    }

    def place(path: tuple, leaf: Any) -> NamedSharding:
        for start in range(len(path)):
            if path[start:] in by_path:
                return by_path[path[start:]]
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, state)
