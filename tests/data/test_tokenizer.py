import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.data import Tokenizer
from olmo_hydra.data.tokenizer import build

TOKENIZER = build(Tokenizer.bytes)


def test_known_bytes():
    # U+00E9 and U+20AC in UTF-8 (RFC 3629).
    ids = TOKENIZER.encode("aé€\0")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [0x61, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0x00]
    assert (TOKENIZER.vocab_size, TOKENIZER.eos) == (Tokenizer.bytes.vocab_size, 256)


@given(st.text())
def test_every_text_comes_back_and_none_holds_the_end_of_a_document(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert len(ids) == len(text.encode()) and (ids < TOKENIZER.eos).all()


def test_ids_that_are_no_text():
    assert TOKENIZER.decode([256, 0x61, 256, 0x62, 263]) == "ab"
    assert TOKENIZER.decode([0xE2, 0x82, 256]) == "\ufffd"
    assert TOKENIZER.encode("a\ud800b").tolist() == list(b"a?b")
