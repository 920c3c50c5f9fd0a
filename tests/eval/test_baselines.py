"""Counting models against counts made by hand and against plain Python."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.remote import Remote, find
from olmo_hydra.data.files.token_file import TokenFile, open_file
from olmo_hydra.eval import baselines
from olmo_hydra.eval.baselines import Counts, trigram, unigram
from olmo_hydra.eval.heldout import IGNORED

VOCAB = 5


def test_unigram_by_hand() -> None:
    score = unigram([np.array([0, 0, 1]), np.array([2])], 3)  # with one added: 3, 2, 2 of 7
    nats = score(np.zeros((1, 3), int), np.array([[0, 1, IGNORED]]))
    np.testing.assert_allclose(nats, [-np.log(3 / 7) - np.log(2 / 7)])


def witten_bell(text: list[int]) -> dict[tuple[int, int, int], float]:
    counts = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for n in (1, 2, 3)]
    total = len(text) + VOCAB
    follows: dict[tuple, Counter] = defaultdict(Counter)
    for grams in counts[1:]:
        for gram, count in grams.items():
            follows[gram[:-1]][gram[-1]] += count

    def probability(context: tuple, c: int) -> float:
        if not context:
            return (counts[0][(c,)] + 1) / total
        shorter = probability(context[1:], c)
        seen = follows[context]
        if not seen:
            return shorter
        return (seen[c] + len(seen) * shorter) / (sum(seen.values()) + len(seen))

    symbols = range(VOCAB)
    return {(a, b, c): probability((a, b), c) for a in symbols for b in symbols for c in symbols}


def test_trigram_is_witten_bell() -> None:
    text = np.random.default_rng(0).integers(0, VOCAB, 60) ** 2 % VOCAB
    score = trigram([text.astype(np.uint16)], VOCAB)
    expected = witten_bell(text.tolist())
    for (a, b, c), probability in expected.items():
        nats = score(np.array([[a, b]]), np.array([[IGNORED, c]]))
        np.testing.assert_allclose(nats, -np.log(probability), rtol=1e-12, err_msg=f"{a} {b} {c}")
    for a in range(VOCAB):
        for b in range(VOCAB):
            np.testing.assert_allclose(sum(expected[a, b, c] for c in range(VOCAB)), 1, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=4), st.sampled_from([3, 100_278]))
def test_grams_stay_inside_a_text_and_their_contexts_go_on_as_often(texts: list[list[int]], vocab: int) -> None:
    """Of few ids and of so many that V^3 numbers fit nowhere."""
    spread = [[i * (vocab // 3) for i in text] for text in texts]
    for n in (2, 3):
        expected = Counter(gram for text in spread for gram in zip(*(text[i:] for i in range(n)), strict=False))
        grams = Counts.of_grams([np.array(text, np.uint32) for text in spread], vocab, n)
        contexts = grams.contexts(vocab)
        for gram in product((0, vocab // 3, vocab - 1, 2 * (vocab // 3)), repeat=n):
            key = sum(token * vocab ** (n - 1 - i) for i, token in enumerate(gram))
            assert grams[np.array([key])].tolist() == [[expected[gram]]]
            going_on = [count for found, count in expected.items() if found[:-1] == gram[:-1]]
            assert contexts[np.array([key // vocab])].tolist() == [[sum(going_on)], [len(going_on)]]


def test_a_vocabulary_of_100278_ids() -> None:
    """As many bits as the same text has under its own few ids, but for the ones added to ids that never occur."""
    text = np.random.default_rng(1).integers(0, VOCAB, 500) ** 2 % VOCAB
    tokens, labels = text[None, :-1], text[None, 1:]
    few = trigram([text.astype(np.uint16)], VOCAB)(tokens, labels)
    many = trigram([(text * 20_000).astype(np.uint32)], 100_278)(tokens * 20_000, labels * 20_000)
    assert 1 < many[0] / few[0] < 1.05


def files_of(folder: Path, sizes: list[int]) -> list[TokenFile]:
    files = []
    for i, size in enumerate(sizes):
        path = folder / f"{i}.npy"
        np.full(size, i % 256).astype("<u2").tofile(path)
        files.append(open_file(path, np.dtype("<u2"), label="text"))
    return files


def test_of_much_text_the_same_share_of_every_file_is_counted(tmp_path, monkeypatch) -> None:
    files = files_of(tmp_path, [1000, 0, 200, 8800])
    assert [len(text) for text in baselines.text_to_count(files, 257)] == [1000, 0, 200, 8800]
    monkeypatch.setattr(baselines, "COUNTED", 1000)
    texts = baselines.text_to_count(files, 257)
    assert [len(text) for text in texts] == [100, 0, 20, 880] and set(texts[3].tolist()) == {3}
    monkeypatch.setattr(baselines, "FILES", 4)
    texts = baselines.text_to_count(files_of(tmp_path, [500] * 10), 257)
    assert [text[0] for text in texts] == [0, 3, 6, 9] and sum(map(len, texts)) == 1000


def test_of_a_remote_file_only_what_is_counted_is_fetched(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(baselines, "COUNTED", 64)
    monkeypatch.setattr(Remote, "copy", lambda self: pytest.fail("the whole file was fetched"))
    (local,) = files_of(tmp_path, [1000])
    remote = replace(local, path=find(f"local://{local.path}", tmp_path / "copies"))
    (text,) = baselines.text_to_count([remote], 257)
    assert text.tolist() == [0] * 64


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8"])
def test_files_of_any_integer_give_the_same_numbers(tmp_path, dtype) -> None:
    """Real `.npy` files say their own type, 8 bytes among them."""
    tokens = np.random.default_rng(2).integers(0, VOCAB, 200)
    np.save(tmp_path / "a.npy", tokens.astype(dtype))
    file = open_file(tmp_path / "a.npy", np.dtype("<u2"), label="text")
    asked = tokens[None, :-1].astype(np.int32), tokens[None, 1:].astype(np.int32)
    for fit in (unigram, trigram):
        expected = fit([tokens], VOCAB)(*asked)
        np.testing.assert_array_equal(fit(baselines.text_to_count([file], VOCAB), VOCAB)(*asked), expected)


def test_a_token_past_the_vocabulary_and_a_file_that_has_shrunk_are_named(tmp_path) -> None:
    (file,) = files_of(tmp_path, [1000])
    with file.path.open("r+b") as opened:
        opened.seek(2 * 700)
        opened.write(np.uint16(300).tobytes())
    with pytest.raises(RequestError, match="token 300 is past the 257 ids") as refused:
        baselines.text_to_count([file], 257)
    assert refused.value.where == f"{file.path}, at token 700"
    with file.path.open("r+b") as opened:
        opened.truncate(2 * 500 + 1)
    with pytest.raises(RequestError, match="changed since it was opened"):
        baselines.text_to_count([file], 257)
