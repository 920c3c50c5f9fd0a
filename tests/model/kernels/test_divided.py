"""Every kernel on eight devices, by instances and by heads, against the same kernel on one."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from olmo_hydra.config.mesh import MESH_AXES
from olmo_hydra.model.kernels import cudnn, xla
from olmo_hydra.model.kernels.divided import Divided
from olmo_hydra.model.kernels.splash import Splash
from tests.model.kernels.reference import NAMES, Case, computed, draw

KERNELS = {
    "xla": xla.attention,
    "splash": Splash(128, interpret=True),
    "cudnn": partial(cudnn.attention, implementation="xla"),
}


@pytest.mark.parametrize(
    "shape, batch, kv_heads, group, shard",
    [
        ((2, 4, 1, 1), 8, 2, 2, (1, 128, 4, 8)),
        ((1, 2, 1, 4), 2, 4, 2, (1, 128, 2, 8)),
        ((2, 1, 1, 4), 4, 4, 1, (2, 128, 1, 8)),
        ((2, 2, 1, 2), 3, 2, 2, (3, 128, 2, 8)),  # a batch that does not divide: whole everywhere, its heads are not
    ],
    ids=str,
)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_shards_compute_what_one_device_computes(kernel, shape, batch, kv_heads, group, shard):
    """Values and gradients, with documents, a window and grouped queries."""
    case = Case(positions=128, window=40, documents=3, batch=batch, kv_heads=kv_heads, group=group)
    arrays = draw(case, np.random.default_rng().integers(2**32))
    on_mesh = Divided(kernel, Mesh(np.asarray(jax.devices()).reshape(shape), MESH_AXES))
    divided, whole = computed(on_mesh, case, arrays), computed(kernel, case, arrays)
    for name, found, wanted in zip(NAMES, divided, whole, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6, err_msg=name)
    assert {part.data.shape for part in divided[0].addressable_shards} == {shard}
