import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.tokenizers import bpe
from olmo_hydra.data.tokenizers.tokenizer import build
from tests.data.text.tokenizers import WORDS_OF_TRAINING, dolma2

BYTES = build("bytes")
TRAINED = bpe.train(WORDS_OF_TRAINING, 280)


def test_known_bytes():
    # U+00E9 and U+20AC in UTF-8 (RFC 3629).
    ids = BYTES.encode("aé€\0")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [0x61, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0x00]
    assert (BYTES.vocab_size, BYTES.eos) == (257, 256)


def test_bytes_that_are_no_text():
    assert BYTES.decode([256, 0x61, 256, 0x62, 263]) == "ab"
    assert BYTES.decode([0xE2, 0x82, 256]) == "\ufffd"


@pytest.mark.parametrize("tokenizer", [BYTES, TRAINED], ids=["bytes", "trained"])
@given(texts=st.lists(st.text() | st.sampled_from(["<|endoftext|>", "\U0001f600<|pad|>b", "theme of the theme"])))
def test_every_text_comes_back_and_none_holds_the_end_of_a_document(tokenizer, texts):
    batch = tokenizer.encode_batch(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert ids.dtype == tokenizer.dtype and tokenizer.decode(ids) == text
        assert not {tokenizer.eos, tokenizer.pad} & set(ids.tolist())
        np.testing.assert_array_equal(tokenizer.encode(text), ids)


@pytest.mark.parametrize("tokenizer", [BYTES, TRAINED], ids=["bytes", "trained"])
def test_a_lone_surrogate_becomes_a_question_mark(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_dolma2():
    # The ids that transformers and OLMo-core give, and the padded vocabulary of Olmo 3.
    tokenizer = dolma2()
    assert (tokenizer.vocab_size, tokenizer.eos, tokenizer.pad, tokenizer.dtype) == (100_278, 100_257, 100_277, "<u4")
    texts = ["Language modeling is ", " A", "Answer:"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [[14126, 34579, 374, 220], [362], [16533, 25]]
    assert tokenizer.decode([362, tokenizer.eos, tokenizer.pad, 100_351]) == " A"
    for text in ("<|endoftext|>", "\U0001f600<|endoftext|>"):  # by words, and by the library
        ids = tokenizer.encode(text)
        assert tokenizer.eos not in ids and tokenizer.decode(ids) == text
    assert "<|endoftext|>" in tokenizer.specials


def test_training_merges_what_is_frequent_whatever_the_order():
    assert (TRAINED.vocab_size, TRAINED.dtype) == (280, np.uint16)
    assert [len(TRAINED.encode(word)) for word in ("the", "xqzvk")] == [1, 5]
    assert bpe.train(reversed(WORDS_OF_TRAINING), 280).library.to_str() == TRAINED.library.to_str()
    with pytest.raises(RequestError, match="no more than 260 ids"):
        bpe.train(["abc"], 300)


def test_a_saved_tokenizer_is_the_same(tmp_path):
    TRAINED.save(tmp_path)
    again = build("bpe:280", tmp_path)
    assert (again.eos, again.pad, again.vocab_size) == (TRAINED.eos, TRAINED.pad, 280)
    assert again.encode("the theme").tolist() == TRAINED.encode("the theme").tolist()


def test_saving_is_whole_or_nothing(tmp_path, monkeypatch):
    def killed(path, content, *_):
        path.write_bytes(content[:9].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            TRAINED.save(tmp_path)
    assert not list(tmp_path.glob("*.json"))
    TRAINED.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("content", ["{cut", "[]"])
def test_a_companion_that_is_damaged(tmp_path, content):
    TRAINED.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(RequestError, match="is no JSON") as caught:
        build(str(tmp_path / "tokenizer.json"))
    assert caught.value.where.endswith("tokenizer_config.json")


@pytest.mark.parametrize(
    ("companions", "eos", "pad"),
    [
        ({}, "<|endoftext|>", "<|endoftext|>"),
        ({"tokenizer_config.json": {"eos_token": "t", "pad_token": {"content": "<|pad|>"}}}, "t", "<|pad|>"),
        ({"special_tokens_map.json": {"eos_token": "<|pad|>"}}, "<|pad|>", "<|pad|>"),
    ],
)
def test_which_token_ends_a_document(tmp_path, companions, eos, pad):
    TRAINED.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for name, roles in companions.items():
        (tmp_path / name).write_text(json.dumps(roles))
    tokenizer = build(str(tmp_path / "tokenizer.json"))
    named = (tokenizer.library.id_to_token(tokenizer.eos), tokenizer.library.id_to_token(tokenizer.pad))
    assert named == (eos, pad)


@pytest.mark.parametrize(
    "content", [None, "{", '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}']
)
def test_files_that_are_no_tokenizer(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(RequestError) as caught:
        build(str(tmp_path / "tokenizer.json"))
    assert caught.value.key == "data.tokenizer" and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("unknown", [None, "[UNK]"])
def test_a_tokenizer_without_ids_for_all_text(tmp_path, unknown):
    vocab = {"word": 0, "</s>": 1} | ({unknown: 2} if unknown else {})
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    content = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    if unknown:
        assert build(str(path)).encode("word other").tolist() == [0, 2]
    else:
        with pytest.raises(RequestError, match="has no ids for some text") as caught:
            build(str(path))
        assert (caught.value.key, caught.value.value) == ("data.tokenizer", str(path))


def test_a_trained_tokenizer_needs_its_text():
    with pytest.raises(RequestError, match="trained on the text"):
        build("bpe:280")
    with pytest.raises(RequestError, match="is no tokenizer"):
        build("cl100k")
