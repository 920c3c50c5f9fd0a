"""What a run evaluates when something of it is absent: held-out text, the tokenizer's file."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.corpus import HeldoutDocument
from olmo_hydra.data.tokenizers.tokenizer import ByteTokenizer
from olmo_hydra.eval.in_loop import InLoop
from olmo_hydra.hardware.sharding import make_mesh, replicated
from olmo_hydra.model import decoder

OVERRIDES = (
    *("model.d_model=32", "model.head_dim=16", "model.d_ff=48", "model.n_layers=1", "model.window_pattern=[full]"),
    *("data.seq_len=16", "train.steps=50", "eval.sample_tokens=3", "eval.prompts=[a]"),
)


class NoFile(ByteTokenizer):
    def encode_batch(self, texts):
        raise RequestError("its file is not there", key="data.tokenizer")


@pytest.fixture(scope="module")
def model() -> tuple[Any, nnx.GraphDef, nnx.State]:
    config = compose(OVERRIDES)
    loop, remat = config.hardware.layer_loop, config.hardware.remat
    made = decoder.build(config.model, rngs=nnx.Rngs(0), layer_loop=loop, remat=remat)
    return config, *nnx.split(made, nnx.Param)


def rows(model, domains, tokenizer, first: bool = True) -> tuple[list[dict], list[str]]:
    """Of the first and the last update of a run."""
    config, graphdef, params = model
    found: list[dict] = []
    notes: list[str] = []
    mesh = make_mesh(config.hardware, jax.devices()[:1])
    evaluate = InLoop(
        config, SimpleNamespace(tokenizer=tokenizer, files=[]), domains, graphdef,
        place=jnp.asarray, whole=replicated(mesh), first=first,
        batch=2, key=jax.random.key(0), record=found.append, note=notes.append,
    )  # fmt: skip
    for step in (0, 50):
        evaluate(step, params)()
    return found, notes


def test_without_held_out_text_there_are_samples_alone(model) -> None:
    found, _ = rows(model, {}, ByteTokenizer())
    assert [row["suite"] for row in found] == ["samples"]


def test_another_process_counts_no_baselines(model) -> None:
    document = HeldoutDocument("name", np.arange(40, dtype=np.uint16), 40)
    found, _ = rows(model, {"text": [document]}, NoFile(), first=False)
    assert [row["suite"] for row in found] == ["heldout", "heldout"]


def test_without_the_tokenizers_file_there_are_no_samples(model) -> None:
    document = HeldoutDocument("name", np.arange(40, dtype=np.uint16), 40)
    found, notes = rows(model, {"text": [document]}, NoFile())
    assert [row["suite"] for row in found] == ["heldout", "baseline_unigram", "baseline_trigram", "heldout"]
    assert found[0]["domains"]["text"]["targets"] == 40 and found[1]["fitted_tokens"] == 0
    assert "0 of 0 training tokens" in notes[0] and "no samples" in notes[1] and "data.tokenizer" in notes[1]
