"""The decoder as a scorer, and its samples, against the decoder itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from olmo_hydra.config.compose import compose
from olmo_hydra.eval.generate import sample, until
from olmo_hydra.eval.heldout import IGNORED
from olmo_hydra.eval.scoring import Scorer
from olmo_hydra.model import decoder

OVERRIDES = ["model.d_model=32", "model.head_dim=16", "model.d_ff=48", "model.window=8"]


@pytest.fixture(scope="module")
def split() -> tuple[nnx.GraphDef, nnx.State]:
    config = compose(OVERRIDES)
    hardware = config.hardware
    model = decoder.build(config.model, rngs=nnx.Rngs(0), layer_loop=hardware.layer_loop, remat=hardware.remat)
    return nnx.split(jax.tree.map(lambda x: 3 * x, model), nnx.Param)  # far from uniform


def test_scores_are_summed_cross_entropy(split) -> None:
    graphdef, params = split
    rng = np.random.default_rng()
    tokens_BT, labels_BT = rng.integers(0, 257, (2, 3, 24)).astype(np.int32)
    labels_BT[rng.random((3, 24)) < 0.5] = IGNORED
    nats = Scorer(graphdef, jnp.asarray)(params, tokens_BT, labels_BT)
    log_p_BTV = log_softmax(np.asarray(nnx.merge(graphdef, params)(tokens_BT), np.float64), axis=-1)
    for b in range(3):
        counted = np.flatnonzero(labels_BT[b] != IGNORED)
        np.testing.assert_allclose(nats[b], -log_p_BTV[b, counted, labels_BT[b, counted]].sum(), rtol=1e-5)


def greedy(split, prompt: list[int], new_tokens: int) -> list[int]:
    graphdef, params = split
    logits = jax.jit(lambda tokens_BT: nnx.merge(graphdef, params)(tokens_BT)[0, :, :257])
    tokens = [256, *prompt]
    for _ in range(new_tokens):
        following = [0] * (1 + len(prompt) + new_tokens - len(tokens))  # which nothing before them sees
        tokens.append(int(logits(jnp.array([tokens + following]))[len(tokens) - 1].argmax()))
    return tokens[1 + len(prompt) :]


def test_greedy_samples_are_the_likeliest_tokens(split) -> None:
    prompts = [[65, 66, 67], [100]]
    found = sample(
        *split, [np.array(p) for p in prompts], key=jax.random.key(0), new_tokens=4, temperature=0, vocab=257, eos=256
    )
    for prompt, text in zip(prompts, found, strict=True):
        assert text.tolist() == until(np.array(greedy(split, prompt, 4)), 256).tolist()


def test_samples_follow_the_key_and_stay_in_the_vocabulary(split) -> None:
    def draw(seed: int) -> list[int]:
        options = {"new_tokens": 40, "temperature": 5.0, "vocab": 257, "eos": 300}
        return sample(*split, [np.array([65])], key=jax.random.key(seed), **options)[0].tolist()

    assert draw(1) == draw(1) != draw(2)
    assert len(draw(1)) == 40 and max(draw(1)) <= 256


def test_until() -> None:
    assert until(np.array([1, 2, 9, 3]), 9).tolist() == [1, 2]
    assert until(np.array([1, 2]), 9).tolist() == [1, 2]
