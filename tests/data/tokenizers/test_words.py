import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from olmo_hydra.data.tokenizers import bpe, words
from tests.data.text.tokenizers import WORDS_OF_TRAINING, dolma2

TRAINED = bpe.train(WORDS_OF_TRAINING, 280)


def by_library(tokenizer, texts):
    encodings = tokenizer.library.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, tokenizer.dtype).tolist() for encoding in encodings]


def by_words(tokenizer, texts):
    found = words.Words(tokenizer.library, tokenizer.dtype)
    assert all(map(found.knows_all_of, texts))
    return [ids.tolist() for ids in found.encode(texts)]


def test_every_character_counts_as_the_library_counts_it():
    # A byte a token, so that no merge hides how a text was split: the split decides what "the" and "'s" merge to.
    texts = []
    for first in range(0, words.LAST + 1, 256):
        block = [chr(code) for code in range(first, first + 256) if not 0xD800 <= code < 0xE000]
        texts.append("".join(f"the{c}the '{c} '{c}e 1{c}23 .{c}. {c}\n{c}{c} the  {c}" for c in block))
    splitting = TRAINED.library.pre_tokenizer
    for text in filter(None, texts):
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        expected = [word for word, _ in splitting.pre_tokenize_str(text)]
        found = [to_bytes.pre_tokenize_str(word)[0][0] for word in words._pattern().findall(text)]
        assert found == expected


@given(
    st.lists(st.text(st.characters(max_codepoint=words.LAST, codec="utf-8"), max_size=40))
    | st.lists(st.text(st.sampled_from(" \n\r\t'sStThHe.1\u017f\xa0\x1c\x85é"), max_size=40))
)
def test_ids_are_the_library_s(texts):
    assert by_words(TRAINED, texts) == by_library(TRAINED, texts)


def test_real_text_in_slices_with_a_small_memory(monkeypatch):
    tokenizer = dolma2()
    text = Path(words.__file__).read_text() + "\n\n  '''They're  at 1234567 o'clock''' \r\n\tÉtude\u2028 x" * 3
    monkeypatch.setattr(words, "KEPT", 30)
    for size in (1, 37, 500):
        monkeypatch.setattr(words, "SLICE", size)
        assert len(list(words._slices(text))) > 1 and "".join(words._slices(text)) == text
        assert by_words(tokenizer, [text, "", text[:99]]) == by_library(tokenizer, [text, "", text[:99]])


def test_what_words_cannot_tell_goes_to_the_library():
    tokenizer = dolma2()
    texts = ["call |||PHONE_NUMBER||| now", "a\U0001f600b", "plain", "<|endoftext|>"]
    random.Random(0).shuffle(texts)
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == by_library(tokenizer, texts)
    known = words.Words(tokenizer.library, tokenizer.dtype).knows_all_of
    assert [known(text) for text in sorted(texts)] == [True, False, False, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda library: setattr(library, "normalizer", normalizers.NFC()),
        lambda library: setattr(library, "pre_tokenizer", pre_tokenizers.ByteLevel()),
        lambda library: setattr(library, "pre_tokenizer", pre_tokenizers.Split(Regex(words.PATTERN), "isolated")),
        lambda library: setattr(library.model, "dropout", 0.1),
        lambda library: setattr(
            library,
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
    ],
)
def test_other_tokenizers_are_left_to_the_library(change):
    library = bpe.train(WORDS_OF_TRAINING, 270).library
    assert words.Words.can_be_used(library)
    change(library)
    assert not words.Words.can_be_used(library)
