"""Weights in memory, and models of the reference implementation saved as it saves them; random, norms included."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from olmo_hydra.config.model import ModelConfig
from olmo_hydra.interop.model_node import olmo3
from olmo_hydra.interop.shapes import param_shapes
from tests.components import require_component

FULL, SLIDING = "full_attention", "sliding_attention"
SHAPE = {
    "vocab_size": 515,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "sliding_window": 16,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 5e5}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 5e5,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.2079441541679836,
}
YARN = {"rope_parameters": {FULL: YARN_ROPE, SLIDING: PLAIN_ROPE}}


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The package, with torch; the test skips without them."""
    found = find_spec("torch") is not None and find_spec("transformers") is not None
    require_component("transformers", found, 'pip install -e ".[hf]"')
    import torch
    import transformers

    torch.set_num_threads(1)  # as many processes as cores run tests
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@pytest.fixture(scope="session")
def hf_model(transformers, tmp_path_factory) -> Callable[..., tuple[Any, Path]]:
    """(model, folder): an Olmo 3 of `transformers` in fp32 and where it was saved. `changes` are of its config."""
    import torch

    def make(seed: int, **changes: Any) -> tuple[Any, Path]:
        shape = {**SHAPE, **changes}
        logits_std = 0.6  # of what a normalised vector gives
        shape.setdefault("initializer_range", logits_std / shape["hidden_size"] ** 0.5)
        config = transformers.Olmo3Config(**shape)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            model = transformers.Olmo3ForCausalLM(config).eval()
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.normal_(1.0, 0.25)
        folder = tmp_path_factory.mktemp("hf")
        model.save_pretrained(folder)
        return model, folder

    return make


@dataclass
class InMemory:
    """`interop.weights.Weights` of arrays."""

    model: ModelConfig
    tensors: dict[str, np.ndarray]
    place: str = "memory"

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def changed(self, place: str, **tensors: np.ndarray) -> "InMemory":
        """The same with some tensors in place of others; `__` in a name stands for a dot."""
        named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        assert named.keys() <= self.tensors.keys()
        return InMemory(self.model, {**self.tensors, **named}, place)


TINY = {
    **{"d_model": 24, "n_layers": 4, "head_dim": 8, "n_heads": 4, "n_kv_heads": 2, "d_ff": 40, "window": 5},
    **{"vocab_size": 50, "vocab_multiple": 1, "max_seq_len": 64, "window_pattern": ["sliding", "full"]},
}


@pytest.fixture
def in_memory() -> Callable[..., InMemory]:
    """Weights of a tiny model with some fields changed; a seed gives the same values."""

    def make(seed: int | None = None, place: str = "memory", **changes: Any) -> InMemory:
        rng = np.random.default_rng(seed)
        model = olmo3({**TINY, **changes}, "here")

        def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
            mean, std = (1.0, 0.25) if "norm" in name else (0.0, 0.2)
            return rng.normal(mean, std, shape).astype(np.float32)

        tensors = {name: draw(name, struct.shape) for name, struct in param_shapes(model).items()}
        return InMemory(model, tensors, place)

    return make
