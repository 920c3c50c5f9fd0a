"""The update as it is given to the compiler: the same for a run on its devices and for devices that are not here."""

from typing import Any

import jax
import jax.numpy as jnp

from olmo_hydra.config.root import Config
from olmo_hydra.hardware.sharding import make_mesh, replicated, token_sharding
from olmo_hydra.train.state import Program, State, make_program
from olmo_hydra.train.step import Inputs, Step, make_step


def lower(config: Config, mesh: jax.sharding.Mesh, step: Step, state: State) -> jax.stages.Lowered:
    """The update with its state donated and the layout of that pinned.

    Args:
      config: Of the run.
      mesh: Its devices.
      step: Of `make_step`.
      state: What it begins with; or the shapes and shardings of that (`abstract_state`).
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    update = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
    micro_batches = config.hardware.accumulation(config.train.global_batch)
    shape = (micro_batches, config.train.global_batch // micro_batches, config.data.seq_len)
    tokens_ABT: Any = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=token_sharding(mesh, leading=1))
    inputs = Inputs(tokens_ABT, tokens_ABT, tokens_ABT if config.data.document_mask else None)
    return update.lower(state, inputs, jax.ShapeDtypeStruct((), jnp.float32))


def lower_for(config: Config, devices: list[jax.Device]) -> jax.stages.Lowered:
    """The update of a run on devices that may be elsewhere: nothing is allocated.

    Raises:
      RequestError: `optim.no_decay` names no parameter.
    """
    mesh = make_mesh(config.hardware, devices)
    program = make_program(config, mesh)
    return lower(config, mesh, make_step(program), abstract_state(program))


def abstract_state(program: Program) -> State:
    """The state of a run without its values."""

    def placed(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, program.abstract, program.shardings)
