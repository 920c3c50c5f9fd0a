"""From `hardware.attention` to a kernel, and a whole decoder computed by each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import Positions
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.mesh import MESH_AXES
from olmo_hydra.config.remat import Remat
from olmo_hydra.model import decoder, kernels
from olmo_hydra.model.kernels import cudnn, xla
from olmo_hydra.model.kernels.divided import Divided
from olmo_hydra.model.kernels.splash import Splash
from olmo_hydra.model.params import named

BF16 = "model.compute_dtype=bfloat16"


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["hardware=cpu"], xla.attention),
        (["hardware=ironwood"], Splash(2048)),
        (["hardware=ironwood", "hardware.attention_block=null"], Splash()),
        (["hardware=ironwood", "hardware.attention=xla"], xla.attention),
        (["hardware=gpu", "hardware.attention=cudnn", BF16], cudnn.attention),
    ],
)
def test_the_config_names_the_kernel(overrides, expected):
    mesh = Mesh(np.asarray(jax.devices()).reshape(1, 8, 1, 1), MESH_AXES)
    assert kernels.build(compose(overrides).hardware, mesh) == Divided(expected, mesh)


@pytest.mark.parametrize(
    "overrides, parts",
    [
        ("hardware.attention=splash", ["hardware.attention=splash", "tpu only", "hardware.attention=xla"]),
        ("hardware=ironwood hardware.attention=cudnn", ["gpu only", "is of platform tpu", "hardware.attention=splash"]),
        ("hardware=ironwood hardware.attention_block=300", ["hardware.attention_block=300", "128", "=256"]),
        (
            f"hardware=gpu hardware.attention=cudnn {BF16} hardware.chips=2 hardware.mesh.context=2",
            [
                "hardware.mesh.context=2",
                "hardware.attention=cudnn",
                "hardware.mesh.context=1",
                "hardware.attention=xla",
            ],
        ),
        ("hardware=gpu hardware.attention=cudnn", ["model.compute_dtype=float32", BF16]),
        (f"hardware=gpu hardware.attention=cudnn {BF16} model.head_dim=4", ["model.head_dim=4", "multiple of 8"]),
        (f"hardware=gpu hardware.attention=cudnn {BF16} model.head_dim=512 model.n_heads=1", ["at most 256"]),
        (
            f"hardware=gpu hardware.attention=cudnn {BF16} data.seq_len=255 data.document_mask=true",
            ["data.seq_len=255", "even", "data.seq_len=256"],
        ),
    ],
)
def test_impossible_kernels_are_refused(overrides, parts):
    with pytest.raises(RequestError) as refused:
        compose(overrides.split())
    for part in parts:
        assert part in str(refused.value)


def cudnn_arguments(*args, **kwargs):
    """The call that cuDNN gets, computed by XLA."""
    return cudnn.attention(*args, **kwargs, implementation="xla")


@pytest.mark.parametrize(
    "attend, layer_loop",
    [(Splash(interpret=True), LayerLoop.scan), (cudnn_arguments, LayerLoop.unrolled)],
    ids=["splash", "cudnn"],
)
def test_a_decoder_is_the_same_with_every_kernel(config, lively, attend, layer_loop):
    """Logits and every gradient, grouped queries, a full layer and a sliding one, documents, recomputed layers.

    Positions start at each document, so that the rotations of two rows differ.
    """
    rng = np.random.default_rng()
    cfg, seed = config(n_layers=2), rng.integers(2**32)
    tokens_BT = jnp.asarray(rng.integers(0, cfg.vocab_size, (2, 21)), jnp.int32)
    segments_BT = jnp.asarray(np.sort(rng.integers(0, 3, (2, 21)), axis=1), jnp.int32)
    weight_BTV = rng.normal(size=(2, 21, cfg.vocab_size)).astype(np.float32)
    _, params = lively(cfg, seed)

    def logits_and_grads(attend):
        @nnx.eval_shape
        def model():
            loop = {"layer_loop": layer_loop, "remat": Remat.full}
            return decoder.build(cfg, rngs=nnx.Rngs(0), **loop, attend=attend, positions=Positions.restarted)

        graph = nnx.split(model)[0]

        def weighted(params):
            logits_BTV = nnx.merge(graph, params)(tokens_BT, segments_BT)[..., : cfg.vocab_size]
            return (logits_BTV * weight_BTV).mean(), logits_BTV

        quick = {"xla_backend_optimization_level": 0}
        return jax.jit(jax.grad(weighted, has_aux=True), compiler_options=quick)(params)

    (grads, logits), (wanted_grads, wanted) = logits_and_grads(attend), logits_and_grads(xla.attention)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5)
    for name, grad in named(grads).items():
        wanted_grad = named(wanted_grads)[name]
        np.testing.assert_allclose(grad, wanted_grad, rtol=0, atol=2e-5 * np.abs(wanted_grad).max(), err_msg=name)
