"""The kernel's operations one by one on this machine, and its compilation for a TPU that is not here."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.hardware import BATCH_AXES, MESH_AXES, splash_block
from olmo_hydra.hardware.ahead import ENVIRONMENT
from olmo_hydra.model.kernels.divided import Divided
from olmo_hydra.model.kernels.splash import Splash, make_kernel
from tests.components import require_component
from tests.model.kernels.reference import Case, assert_equals_reference


@pytest.mark.parametrize(
    "case",
    [
        Case(positions=256, window=100, documents=3, group=3),
        Case(positions=384, window=None, kv_heads=1, head_dim=130),
        Case(positions=256, window=1, documents=2, group=1),
        Case(positions=130, window=500, documents=2, head_dim=6),  # a block that is not full
        Case(positions=5, window=3),
    ],
    ids=str,
)
def test_equals_the_float64_reference(case):
    seed = np.random.default_rng().integers(2**32)
    assert_equals_reference(Splash(block=128, interpret=True), case, seed)


def test_blocks_divide_the_sequence():
    assert [splash_block(length, None) for length in (100, 256, 640, 8192)] == [
        (128, 128),
        (256, 256),
        (640, 128),
        (8192, 512),
    ]
    assert splash_block(2560, 2048) == (2560, 1280)


def test_blocks_outside_the_window_are_not_computed():
    """Of 8 x 8 blocks, a query sees its own block and, in a window of one block, the one before."""

    def computed_blocks(window):
        kernel = make_kernel(heads=1, length=1024, window=window, block=128, interpret=False)
        return [(np.asarray(info.block_mask) > 0).sum() for info in (kernel.fwd_mask_info, kernel.dkv_mask_info)]

    assert computed_blocks(None) == [36, 36]
    assert computed_blocks(128) == [15, 15]


def test_a_mask_is_made_once():
    arguments = {"heads": 4, "length": 128, "window": 7, "block": 128, "interpret": True}
    assert make_kernel(**arguments) is make_kernel(**arguments)


@pytest.mark.parametrize(
    "head_dim, dtype, mesh_shape",
    [(128, jnp.bfloat16, (1, 2, 1)), (64, jnp.bfloat16, (1, 1, 2)), (16, jnp.float32, (1, 2, 1))],
)
def test_compiles_for_a_tpu(monkeypatch, head_dim, dtype, mesh_shape):
    """Forward and backward, over both devices of a chip, by the compiler that the chip uses."""
    found = importlib.util.find_spec("libtpu") is not None
    require_component("libtpu", found, 'pip install -c constraints.txt -e ".[tpu]"')
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    topology = topologies.get_topology_desc("tpu7x:1x1x1", platform="tpu")
    mesh = Mesh(np.asarray(topology.devices).reshape(mesh_shape), MESH_AXES)
    batch = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    q, k = (jax.ShapeDtypeStruct((2, 384, heads, head_dim), dtype, sharding=batch) for heads in (4, 2))
    segments = jax.ShapeDtypeStruct((2, 384), jnp.int32, sharding=batch)

    def total(q, k, v, segments):
        return Divided(Splash(), mesh)(q, k, v, window=200, scale=0.1, segments_BT=segments).astype(jnp.float32).sum()

    lowered = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(q, k, k, segments)
    assert lowered.as_text().count("tpu_custom_call") == 3  # forward, dk with dv, dq
    assert lowered.compile().memory_analysis().generated_code_size_in_bytes > 0
