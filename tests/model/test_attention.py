import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from olmo_hydra.config.model import QKNorm
from olmo_hydra.model import rope
from olmo_hydra.model.attention import SelfAttention
from olmo_hydra.model.init import Init
from olmo_hydra.model.kernels import xla


@pytest.mark.parametrize(
    "qk_norm, whole_matters, one_head_matters",
    [(QKNorm.projection, False, True), (QKNorm.head, False, False), (QKNorm.none, True, True)],
)
def test_qk_norm_forgets_the_scale_it_normalises(config, qk_norm, whole_matters, one_head_matters):
    """A norm over the projection undoes a scaling of all queries, one over each head a scaling of one head as well."""
    rng = np.random.default_rng()
    cfg = config(qk_norm=qk_norm, norm_eps=1e-12)
    x_BTD = jnp.asarray(rng.normal(size=(1, 9, cfg.d_model)), jnp.float32)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: SelfAttention(Init(cfg, nnx.Rngs(0)), xla.attention)))
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(leaf.ndim == 1, 0.3, leaf.shape), jnp.float32), shapes)
    weight = jnp.asarray(rng.normal(0, 0.1, params["q"]["weight"].shape), jnp.float32)  # no saturated softmax
    rotation = rope.tables(rope.Frequencies(tuple(1e4 ** (-np.arange(4) / 4))), jnp.arange(9))
    layer = jax.jit(lambda params: nnx.merge(graph, params)(x_BTD, rotation, window=None))

    def output(weight):
        params["q"]["weight"][...] = weight
        return np.asarray(layer(params))

    def matters(scaled):
        plain = output(weight)
        return np.abs(output(scaled) - plain).max() > 1e-4 * np.abs(plain).max()

    assert matters(weight * 3) == whole_matters
    assert matters(weight.at[:, : cfg.head_dim].multiply(3)) == one_head_matters
