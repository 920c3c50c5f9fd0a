"""Kernels of shards along `context` against float64: values and gradients, with grouped queries."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from olmo_hydra.config.mesh import MESH_AXES
from olmo_hydra.model.kernels import xla
from olmo_hydra.model.kernels.divided import Divided
from olmo_hydra.model.kernels.splash import Splash, make_kernel
from tests.model.kernels.reference import Case, assert_equals_reference, computed, draw

Shape = tuple[int, int, int, int]


def divided(kernel, shape: Shape) -> Divided:
    devices = np.asarray(jax.devices()[: np.prod(shape)])
    return Divided(kernel, Mesh(devices.reshape(shape), MESH_AXES))


def seed() -> int:
    return int(np.random.default_rng().integers(2**32))


@pytest.mark.parametrize(
    ("shape", "case"),
    [
        ((2, 1, 2, 2), Case(positions=48, window=None, documents=3)),
        ((1, 1, 4, 2), Case(positions=48, window=None)),
        ((1, 1, 8, 1), Case(positions=48, window=20, documents=2)),  # reaches over four shards of 6
        ((1, 1, 8, 1), Case(positions=48, window=3)),
        ((1, 2, 4, 1), Case(positions=48, window=1, documents=3)),
        ((1, 2, 4, 1), Case(positions=48, window=40, documents=3)),  # more than half: all keys
        ((1, 1, 4, 2), Case(positions=512, window=9, documents=5, batch=1)),  # blocks of the shard in one batch
    ],
    ids=str,
)
def test_xla_equals_the_float64_reference(shape: Shape, case: Case) -> None:
    assert_equals_reference(divided(xla.attention, shape), case, seed())


@pytest.mark.parametrize(
    ("shape", "case"),
    [
        ((1, 1, 2, 1), Case(positions=512, window=None, documents=3, batch=1)),  # two blocks of each shard's queries
        ((1, 1, 2, 1), Case(positions=260, window=70, documents=3, batch=1)),  # blocks that are not full
    ],
    ids=str,
)
def test_splash_equals_the_float64_reference(shape: Shape, case: Case) -> None:
    assert_equals_reference(divided(Splash(block=128, interpret=True), shape), case, seed())


def test_every_shard_computes_as_many_blocks() -> None:
    """Of the 36 blocks at or below the diagonal of 8 x 8, a quarter each."""
    kernel = make_kernel(heads=1, queries=256, keys=1024, shards=4, window=None, block=128, interpret=False)
    for info in (kernel.fwd_mask_info, kernel.dq_mask_info):
        assert (np.asarray(info.block_mask) > 0).reshape(4, -1).sum(axis=1).tolist() == [9, 9, 9, 9]


def test_sequences_that_do_not_divide_are_whole_everywhere() -> None:
    """Prompts of samples: 21 positions, of which four shards could not have two parts each."""
    case = Case(positions=21, window=5)
    arrays = draw(case, seed())
    out = computed(divided(xla.attention, (1, 2, 4, 1)), case, arrays)[0]
    np.testing.assert_allclose(out, computed(xla.attention, case, arrays)[0], rtol=2e-6, atol=2e-6)
