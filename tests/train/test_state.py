"""The state before the first update."""

import jax
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.train.state import make_program


@pytest.mark.parametrize("typed", [[], ["hardware=cpu_sim", "hardware.mesh.tensor=2", "optim=skip_step_adamw"]])
def test_less_effort_of_llvm_gives_the_same_bytes(typed: list[str], monkeypatch) -> None:
    config = compose(typed)
    program = make_program(config, make_mesh(config.hardware, jax.devices()[: config.hardware.devices]))
    quick, efforts, compile = program.init(), [], jax.stages.Lowered.compile

    def in_full(lowered: jax.stages.Lowered, compiler_options: dict) -> jax.stages.Compiled:
        efforts.append(compiler_options)
        return compile(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", in_full)
    full = program.init()
    assert efforts == [{"xla_backend_optimization_level": "1"}]
    leaves, same = jax.tree.leaves(jax.device_get(quick)), jax.tree.leaves(jax.device_get(full))
    assert [leaf.tobytes() for leaf in leaves] == [leaf.tobytes() for leaf in same]
    assert max(leaf.std() for leaf in leaves) > 0.01
