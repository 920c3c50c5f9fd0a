"""What a policy recomputes: the arithmetic against the compiler's own count of operations, and the kernel's passes."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.interpreters.partial_eval import dce_jaxpr

from olmo_hydra.config.compose import compose
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import BlockNorm
from olmo_hydra.config.remat import Point, Remat
from olmo_hydra.hardware import roofline
from olmo_hydra.hardware.flops import matmuls, recomputed
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.model import decoder
from olmo_hydra.model.kernels import xla
from olmo_hydra.model.kernels.divided import Divided
from olmo_hydra.model.kernels.splash import Splash

# Products with weights outweigh all else.
SHAPE = ("model.d_model=256", "model.n_layers=1", "model.head_dim=128", "model.d_ff=640", "model.window_pattern=[full]")
TOKENS = 128


def gradient(block_norm: BlockNorm, remat: Remat, attend=xla.attention, on_host=frozenset()):
    """The program of a gradient of the layers alone, and its parameters' shapes."""
    model = compose([*SHAPE, f"model.block_norm={block_norm.value}"]).model
    made = nnx.eval_shape(
        lambda: decoder.build(
            model, rngs=nnx.Rngs(0), layer_loop=LayerLoop.unrolled, remat=remat, on_host=on_host, attend=attend
        )
    )
    graph, params = nnx.split(made, nnx.Param)

    def loss(params):
        x_BTD = nnx.merge(graph, params)._layers(jnp.ones((1, TOKENS, model.d_model)), None)
        return jnp.square(x_BTD).sum()

    return jax.jit(jax.grad(loss)), params, model


@cache
def operations(block_norm: BlockNorm, remat: Remat) -> float:
    function, params, _ = gradient(block_norm, remat)
    quick = {"xla_backend_optimization_level": "0"}
    return function.lower(params).compile(compiler_options=quick).cost_analysis()["flops"]


@pytest.mark.parametrize("remat", [remat for remat in Remat if remat is not Remat.none])
@pytest.mark.parametrize("block_norm", BlockNorm)
def test_products_computed_again_are_those_of_the_compiled_program(block_norm: BlockNorm, remat: Remat) -> None:
    model = gradient(block_norm, remat)[2]
    again = recomputed(model, remat)
    expected = sum(2 * TOKENS * one.inputs * one.outputs * one.count for one in matmuls(model) if one.point in again)
    if Point.context in again:
        expected += 4 * TOKENS**2 * model.d_model  # logits and their sums, masked or not: one block
    elif remat is not Remat.none:
        expected += 2 * TOKENS**2 * model.d_model
    found = operations(block_norm, remat) - operations(block_norm, Remat.none)
    one_product = 2 * TOKENS * 256 * 256
    assert found == pytest.approx(expected, abs=one_product / 3)  # norms and rotations besides


@pytest.mark.parametrize(
    ("remat", "passes"), [(Remat.none, 3), (Remat.minimal_with_context, 3), (Remat.minimal, 4), (Remat.full, 4)]
)
def test_splash_runs_forward_again_unless_its_context_is_kept(remat: Remat, passes: int) -> None:
    """Its kernels: forward, of dq, and of dk and dv; and the first once more."""
    assert needed(remat, Splash(interpret=True)).count("pallas_call[") == passes


def needed(remat: Remat, attend, on_host=frozenset()) -> str:
    """The program of the gradient without what nothing needs, as the compiler will see it."""
    function, params, _ = gradient(BlockNorm.reordered, remat, attend, on_host)
    jaxpr = jax.make_jaxpr(function)(params).jaxpr
    return str(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0])


def test_what_is_offloaded_goes_to_the_host_and_comes_back_once_and_no_product_is_computed_again() -> None:
    remat = Remat.minimal_with_context_except_up
    kept, moved = (needed(remat, xla.attention, on_host) for on_host in (frozenset(), frozenset({Point.q, Point.gate})))
    assert (moved.count("device_put["), kept.count("device_put[")) == (4, 0)
    assert len(re.findall(r"<host>\S* = device_put\[", moved)) == 2
    assert moved.count("dot_general[") == kept.count("dot_general[")


@pytest.mark.parametrize("remat", Remat)
def test_every_policy_but_none_exchanges_along_context_once_more(remat: Remat) -> None:
    """Of a full layer: keys and values gathered and their gradients scattered; half of queries and results permuted."""
    typed = [
        *SHAPE,
        "hardware=cpu_sim",
        "hardware.devices=2",
        "hardware.mesh.context=2",
        f"hardware.remat={remat.value}",
    ]
    config = compose([*typed, f"data.seq_len={TOKENS}", "train.global_batch=1", "hardware.layer_loop=unrolled"])
    text = needed(remat, Divided(xla.attention, make_mesh(config.hardware, jax.devices()[:2])))
    gathered, scattered, permuted = (text.count(f"{name}[") for name in ("all_gather", "reduce_scatter", "ppermute"))
    each = TOKENS // 2 * 256 * config.model.compute_dtype.size  # keys, values, queries or results of a device
    sent = (gathered + scattered) * each + permuted * each // 2
    (exchange,) = (part for part in roofline.parts(config) if part.name == "exchange context")
    assert exchange.sent == sent
    assert (gathered, permuted) == ((2, 4) if remat is Remat.none else (4, 6))
