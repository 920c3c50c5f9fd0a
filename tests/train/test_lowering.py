"""What is compiled ahead of time is, to the letter, what a run compiles."""

import jax
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.train.lowering import lower, lower_for
from olmo_hydra.train.state import make_program
from olmo_hydra.train.step import make_step

RUN = ("hardware=cpu_sim", "hardware.devices=4", "hardware.mesh.data=2", "train.global_batch=8", "data.seq_len=32")


@pytest.mark.parametrize(("mask", "arguments"), [("false", 2), ("true", 3)])
def test_a_run_and_preflight_lower_the_same_program(mask: str, arguments: int) -> None:
    """A run has its state by then, preflight only the shapes of it; documents that are masked are one input more."""
    config = compose([*RUN, "hardware.micro_batch=1", f"data.document_mask={mask}"])
    devices = jax.devices()[:4]
    mesh = make_mesh(config.hardware, devices)
    program = make_program(config, mesh)
    ours = lower_for(config, devices).as_text()
    assert ours == lower(config, mesh, make_step(program), program.init()).as_text()
    assert ours.partition("->")[0].count("tensor<2x4x32xi32>") == arguments
