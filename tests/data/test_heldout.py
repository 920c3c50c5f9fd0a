"""Hashes of held-out text: what a run that resumes compares."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.data.heldout import HeldoutDocument, differences, digests, of_files
from olmo_hydra.data.tokenizers.tokenizer import ByteTokenizer
from tests.data.token_files import files_of, write

END = KNOWN["bytes"].eos


def document(tokens: list[int], n_bytes: int = 9, dtype: str = "<u2", name: str = "a") -> HeldoutDocument:
    return HeldoutDocument(name, np.array(tokens, dtype), n_bytes)


def test_it_is_of_the_text_not_of_how_it_is_kept() -> None:
    first = digests({"web": [document([1, 2, 3]), document([4])]})
    assert first == digests({"web": [document([1, 2, 3], dtype="<u8", name="b"), document([4])]})
    for other in (
        [document([1, 2]), document([3, 4])],
        [document([4]), document([1, 2, 3])],
        [document([1, 2, 3]), document([4], n_bytes=8)],
        [document([1, 2, 3])],
    ):
        assert differences(first, digests({"web": other})) == ["the held-out text of web is another"]


def test_a_byte_anywhere_counts(tmp_path) -> None:
    """Files are sampled, held-out text is read whole: it is evaluated whole."""
    tokens = np.full(100_000, 65)
    tokens[[40_000, -1]] = END
    path, hashes = tmp_path / "a.npy", []
    for at, value in ((0, 65), (20_000, 66)):
        tokens[at] = value
        write(path, tokens)
        hashes.append(digests(of_files(files_of([path], label="web"), ByteTokenizer(), None, None)))
    assert differences(*hashes) == ["the held-out text of web is another"]


@given(*[st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"))] * 2)
def test_no_difference_is_silent(saved: dict[str, str], now: dict[str, str]) -> None:
    assert bool(differences(saved, now)) == (saved != now)
