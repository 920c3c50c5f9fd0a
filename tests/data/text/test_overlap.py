import random
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.data.text import overlap
from olmo_hydra.data.text.overlap import Grams, overlap_of

WORDS = [f"w{i}" for i in range(5000)]


def words(*numbers):
    return " ".join(WORDS[i] for i in numbers)


def summary(heldout, **training):
    grams = Grams.of(text for _, text in heldout)
    return overlap_of(heldout, grams, {name: grams.mask([grams.found(texts)]) for name, texts in training.items()})


def plain_grams(text):
    found = [word.lower() for word in re.findall(r"[^\W_]+", text)]
    return [tuple(found[i : i + 13]) for i in range(len(found) - 12)]


def test_planted_copies_are_found_and_told():
    heldout = [("a", words(*range(100))), ("b", words(*range(200, 300))), ("c", words(*range(300, 400)))]
    web = [words(*range(1000, 1500), *range(240, 260), *range(1500, 2000)), "short"]
    books = [words(*range(230, 253)), words(*range(312, 325))]
    assert summary(heldout, web=web, books=books, none=[words(*range(4000, 5000))]) == {
        "documents": 3,
        "grams": 3 * 88,
        "documents_shared": 2,
        "grams_shared": 8 + 10 + 1,  # words 240 to 252 are in both
        "by_domain": {
            "web": {"documents_shared": 1, "grams_shared": 8},
            "books": {"documents_shared": 2, "grams_shared": 12},
        },
        "examples": [
            {"document": "b", "grams_shared": 18, "words": words(*range(230, 243))},
            {"document": "c", "grams_shared": 1, "words": words(*range(312, 325))},
        ],
    }


def test_examples_are_the_documents_that_share_most():
    sizes = [15, 40, 13, 20, 14, 30, 13, 25]
    heldout = [(str(i), words(*range(100 * i, 100 * i + size))) for i, size in enumerate(sizes)]
    examples = summary(heldout, train=[text for _, text in heldout])["examples"]
    assert [example["grams_shared"] for example in examples] == [28, 18, 13, 8, 3]
    assert [example["document"] for example in examples] == ["1", "5", "7", "3", "0"]


@pytest.mark.parametrize(
    ("copy", "found"),
    [
        ("IT WAS the best of times; it was the worst of times, it", 1),
        ("it was \u201cthe best\u201d of times\u2014it\nwas_the*worst*, of\u00a0times it", 1),
        ("it was the best of times it was the worst of times", 0),  # 12 words
        ("it was the best of times it was the worst of time s it", 0),
        ("was it the best of times it was the worst of times it", 0),
        ("it was the best of times it was the worst of times 1t", 0),
    ],
)
def test_words_decide_and_nothing_else(copy, found):
    assert (
        summary([("dickens", "It was the best of times, it was the worst of times, it...")], train=[copy])[
            "grams_shared"
        ]
        == found
    )


@pytest.mark.parametrize("cut", range(1, 13))
def test_no_gram_spans_two_documents(cut):
    first, second = words(*range(cut)), words(*range(cut, 13))
    assert summary([("both", f"{first} {second}")], train=[first, second])["grams_shared"] == 0
    assert summary([("both", f"{first} {second}")], train=[f"{first}\n{second}"])["grams_shared"] == 1


def test_short_texts_have_no_grams():
    assert Grams.of([words(*range(12)), "", "!"]).hashes_G.size == 0
    assert Grams.of([]).found([words(*range(50))]).size == 0


# Few words, of one or two letters out of three alphabets, so that grams repeat.
TEXTS = st.lists(
    st.lists(
        st.sampled_from(["a", "B", "b", "ab", "\u00c9", "\u00e9", "\u4e2d", "-", "", "_", "\ud800"]), max_size=60
    ).map(" ".join),
    max_size=8,
)


@given(TEXTS, TEXTS, st.sampled_from([3, 17, 1 << 17]))
def test_equals_sets_of_tuples(heldout, training, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "PIECE", piece)
        named = [(str(i), text) for i, text in enumerate(heldout)]
        overlap._powers.cache_clear()
        got = summary(named, train=training)
        overlap._powers.cache_clear()
    known = {gram for text in training for gram in plain_grams(text)}
    shared = [sum(gram in known for gram in plain_grams(text)) for text in heldout]
    assert got["grams"] == sum(len(plain_grams(text)) for text in heldout)
    assert (got["documents_shared"], got["grams_shared"]) == (sum(n > 0 for n in shared), sum(shared))


def test_long_texts_in_pieces_equal_sets_of_tuples():
    rng = random.Random(0)
    heldout = "".join(rng.choice(["a", "b", "c", " ", ", ", "x" * 30]) for _ in range(30_000)) + "y" * 200_000
    training = ["! " + heldout[1000:20_000].upper(), heldout[-210_000:]]
    known = {gram for text in training for gram in plain_grams(text)}
    grams = plain_grams(heldout)
    assert len(heldout) > 2 * overlap.PIECE
    got = summary([("long", heldout)], train=training)
    # A word of 200,000 letters counts as two: it is cut at the size of a piece.
    assert got["grams"] == len(grams) + 1 and got["grams_shared"] == sum(gram in known for gram in grams) + 1


def test_pieces_of_training_in_any_order():
    heldout = [words(*range(300))]
    grams = Grams.of(heldout)
    pieces = [[words(*range(i, i + 20))] for i in range(0, 200, 50)]
    places = [grams.found(piece) for piece in pieces]
    assert (grams.mask(places) == grams.mask(places[::-1])).all()
    assert grams.mask(places).sum() == 4 * 8 == len(np.unique(np.concatenate(places)))


def test_memory_does_not_grow_with_what_is_found():
    text = " ".join(f"word{i % 97} of{i}" for i in range(5_000))
    grams = Grams.of([text])
    places = grams.found([text])
    assert places.tolist() == list(range(len(grams.hashes_G))) and len(places) > 9_000
    tracemalloc.start()
    again = grams.found(text for _ in range(300))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(again, places)
    assert peak < 20e6  # one place takes eight bytes, and there were 300 times as many
