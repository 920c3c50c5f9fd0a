"""Held-out scoring: every byte a target once, the same numbers in any batch, errors as computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.data.heldout import HeldoutDocument
from olmo_hydra.eval.heldout import IGNORED, HeldOut, cut, row, summary

EOS = 256


def document(tokens: list[int]) -> HeldoutDocument:
    return HeldoutDocument("name", np.array(tokens, np.uint16), len(tokens))


def test_rows_by_hand() -> None:
    rows = cut([document([1, 2, 3, 4, 5]), document([6])], seq_len=3, eos=EOS)
    assert rows.tokens.tolist() == [[EOS, 1, 2], [3, 4, EOS], [EOS, EOS, EOS]]
    assert rows.labels.tolist() == [[1, 2, 3], [4, 5, IGNORED], [6, IGNORED, IGNORED]]
    assert rows.document.tolist() == [0, 0, 1]


@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=20), min_size=1, max_size=5), st.integers(2, 9))
def test_every_token_is_a_target_once_after_its_predecessor(texts: list[list[int]], seq_len: int) -> None:
    rows = cut([document(text) for text in texts], seq_len, EOS)
    for index, text in enumerate(texts):
        mine = rows.document == index
        counted = rows.labels[mine] != IGNORED
        assert rows.labels[mine][counted].tolist() == text
        assert rows.tokens[mine][counted].tolist() == [EOS, *text[:-1]]


def uniform(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
    return math.log(256) * (labels_BT != IGNORED).sum(axis=1)


def test_a_uniform_model_needs_eight_bits_a_byte() -> None:
    domains = {"a": [document(list(range(100))), document([7] * 33)], "b": [document([1])]}
    held = HeldOut(domains, seq_len=16, eos=EOS, batch=4)
    results = held.results(held.scores(uniform))
    assert results["a"] == {
        "documents": 2,
        "bytes": 133,
        "targets": 133,
        "nats": pytest.approx(133 * math.log(256)),
        "bits_per_byte": pytest.approx(8.0),
        "stderr": pytest.approx(0.0, abs=1e-9),
    }
    assert results["b"]["stderr"] is None
    assert row(3, "heldout", results)["bits_per_byte"] == pytest.approx(8.0)


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_batch_changes_no_number(batch: int) -> None:
    rng = np.random.default_rng(0)
    documents = [document(rng.integers(0, 256, n).tolist()) for n in (5, 90, 41)]
    weights = rng.random(257)

    def score(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> np.ndarray:
        return np.where(labels_BT == IGNORED, 0, weights[tokens_BT] + weights[labels_BT.clip(0)]).sum(axis=1)

    held = HeldOut({"a": documents}, seq_len=8, eos=EOS, batch=batch)
    one = held.results(held.scores(score))["a"]
    expected = [weights[[EOS, *d.tokens[:-1]]].sum() + weights[d.tokens].sum() for d in documents]
    assert one["nats"] == pytest.approx(sum(expected), rel=1e-12)


def test_bytes_are_of_the_text_not_of_the_tokens() -> None:
    result = summary(np.array([8 * math.log(2)]), np.array([4]), targets=2)
    assert result["bits_per_byte"] == pytest.approx(2.0) and result["targets"] == 2


def test_standard_error_is_the_spread_of_repeated_draws() -> None:
    """Against the spread over many fresh samples of documents."""
    rng = np.random.default_rng(1)

    def draw() -> dict:
        n_bytes = rng.integers(50, 500, 40)
        return summary(n_bytes * rng.normal(1.5, 0.3, 40), n_bytes, targets=1)

    draws = [draw() for _ in range(600)]
    spread = np.std([d["bits_per_byte"] for d in draws])
    assert np.mean([d["stderr"] for d in draws]) == pytest.approx(spread, rel=0.1)
