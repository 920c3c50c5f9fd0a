"""What a run evaluates when something of it is absent: held-out text, the tokenizer's file."""

import gc
import weakref
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
    found: list[dict] = []
    notes: list[str] = []
    evaluate = in_loop(model, domains, tokenizer, first, found, notes)
    for step in (0, 50):
        evaluate(step, model[2])()
    return found, notes


def in_loop(model, domains, tokenizer, first, found, notes) -> InLoop:
    config, graphdef, _ = model
    mesh = make_mesh(config.hardware, jax.devices()[:1])
    return InLoop(
        config, SimpleNamespace(tokenizer=tokenizer, files=[]), domains, graphdef,
        place=jnp.asarray, whole=replicated(mesh), first=first,
        batch=2, key=jax.random.key(0), record=found.append, note=notes.append,
    )  # fmt: skip


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


def test_parameters_are_kept_for_samples_alone(model) -> None:
    """Else a second copy of those of step 0 would take a device's memory while the next update runs."""
    document = HeldoutDocument("name", np.arange(40, dtype=np.uint16), 40)
    evaluate = in_loop(model, {"text": [document]}, ByteTokenizer(), False, [], [])
    for step, is_kept in ((0, False), (25, False), (50, True)):
        params = jax.tree.map(jnp.copy, model[2])
        leaf = weakref.ref(jax.tree.leaves(params)[0])
        record = evaluate(step, params)
        del params
        gc.collect()
        assert (leaf() is not None) == is_kept
        record()
