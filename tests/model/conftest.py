from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import Attention, BlockNorm, InitMethod, ModelConfig, QKNorm
from olmo_hydra.config.remat import Remat
from olmo_hydra.model import decoder
from olmo_hydra.model.params import param_names

SHAPE = {
    "name": "tiny",
    "d_model": 24,
    "n_layers": 4,
    "head_dim": 8,
    "n_heads": 4,  # heads * head_dim = 32, on purpose not d_model
    "n_kv_heads": 2,
    "d_ff": 40,
    "vocab_size": 50,
    "vocab_multiple": 8,
    "max_seq_len": 64,
    "window": 5,
    "window_pattern": [Attention.sliding, Attention.full],
    "rope_theta": 5e5,
    "yarn_factor": None,
    "yarn_original_len": 16,
    "yarn_beta_fast": 4,
    "yarn_beta_slow": 1,
    "norm_eps": 1e-6,
    "qk_norm": QKNorm.projection,
    "block_norm": BlockNorm.reordered,
    "init_method": InitMethod.normal,
    "init_std": 0.02,
    "init_cut": 3.0,
    "param_dtype": DType.float32,
    "compute_dtype": DType.float32,
}


@pytest.fixture(scope="session")
def config() -> Callable[..., ModelConfig]:
    """A derived and checked config: tiny, with the given fields changed."""

    def make(**changes) -> ModelConfig:
        cfg = ModelConfig(**{**SHAPE, **changes})
        cfg.derive()
        cfg.check()
        return cfg

    return make


@pytest.fixture(scope="session")
def build() -> Callable[..., decoder.Decoder]:
    """A decoder, scanned and without remat unless told otherwise."""

    def make(cfg: ModelConfig, seed: int = 0, layer_loop=LayerLoop.scan, remat=Remat.none, **how) -> decoder.Decoder:
        return decoder.build(cfg, rngs=nnx.Rngs(seed), layer_loop=layer_loop, remat=remat, **how)

    return make


@pytest.fixture(scope="session")
def initial(config) -> Callable[[int], nnx.State]:
    """Initial parameters of the tiny config from a seed, compiled once."""

    def make(key: jax.Array) -> nnx.State:
        return nnx.state(
            decoder.build(config(), rngs=nnx.Rngs(key), layer_loop=LayerLoop.scan, remat=Remat.none), nnx.Param
        )

    compiled = jax.jit(make, compiler_options={"xla_backend_optimization_level": 0})
    return lambda seed: compiled(jax.random.key(seed))


@pytest.fixture(scope="session")
def lively(build) -> Callable[..., tuple[nnx.GraphDef, nnx.State]]:
    """A decoder in two parts, with parameters far from their initial values: wide matrices, norms that are not ones."""

    def make(cfg: ModelConfig, seed: int, **loop) -> tuple[nnx.GraphDef, nnx.State]:
        rng = np.random.default_rng(seed)
        graph, shapes = nnx.split(nnx.eval_shape(lambda: build(cfg, **loop)))

        def draw(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
            mean, std = (1.0, 0.25) if "norm" in name else (0.0, 0.2)
            return jnp.asarray(rng.normal(mean, std, shape.shape), shape.dtype)

        return graph, jax.tree.map(draw, param_names(shapes), shapes)

    return make
