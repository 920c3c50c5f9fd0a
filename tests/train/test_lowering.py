"""What is compiled ahead of time is, to the letter, what a run compiles."""

import jax
import numpy as np
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.sharding import make_mesh, token_sharding
from olmo_hydra.train import ahead
from olmo_hydra.train.lowering import lower_for
from olmo_hydra.train.state import make_program
from olmo_hydra.train.step import Inputs, make_step

RUN = ("hardware=cpu_sim", "hardware.devices=4", "hardware.mesh.data=2", "train.global_batch=8", "data.seq_len=32")
SMALL = ("model.n_layers=1", "model.window_pattern=[full]", "hardware.micro_batch=1")
QUICK = "+hardware.compiler_options.xla_backend_optimization_level='0'"


@pytest.mark.parametrize(("mask", "arguments"), [("false", 2), ("true", 3)])
def test_a_run_and_preflight_lower_the_same_program(mask: str, arguments: int, monkeypatch) -> None:
    """What a run gives the compiler is what preflight gives it, and takes the state that a run has by then. Documents
    that are masked are one input more."""
    config = compose([*RUN, *SMALL, QUICK, f"data.document_mask={mask}"])
    devices = jax.devices()[:4]
    program = make_program(config, make_mesh(config.hardware, devices))
    given, compiled = [], ahead.compiler.compiled

    def seen(lowered: jax.stages.Lowered, *hardware) -> jax.stages.Compiled:
        given.append(lowered.as_text())
        return compiled(lowered, *hardware)

    monkeypatch.setattr(ahead.compiler, "compiled", seen)
    update = ahead.compiled(program, make_step(program)).step
    assert given == [lower_for(config, devices).as_text()]
    assert given[0].partition("->")[0].count("tensor<2x4x32xi32>") == arguments

    tokens_ABT = jax.device_put(np.zeros((2, 4, 32), np.int32), token_sharding(program.mesh, leading=1))
    inputs = Inputs(tokens_ABT, tokens_ABT, tokens_ABT if config.data.document_mask else None)
    _, metrics = update(program.init(), inputs, np.float32(1e-3))
    assert np.isfinite(metrics["loss"])
