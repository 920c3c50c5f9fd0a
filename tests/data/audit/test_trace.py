"""From an update to its documents and back, against what is counted here token by token."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.audit import trace
from olmo_hydra.data.instances.kinds import Packed, Padded, Span, Windows
from olmo_hydra.data.instances.mixture import Ingredient, Mixture
from olmo_hydra.data.tokenizers.tokenizer import ByteTokenizer
from tests.data.token_files import END, batches_of, files_of, write

BYTES = ByteTokenizer()


def tokens_of(*documents):
    return np.concatenate([[*BYTES.encode(text), END] for text in documents])


def test_the_documents_of_an_instance(tmp_path):
    text = tokens_of("abc", "", "defghij")  # a b c E E d e f g h i j E
    batches = batches_of([write(tmp_path / "0.npy", text)], seq_len=6, global_batch=1, seed=0, folder=tmp_path)
    found = [trace.pieces(batches.source, batches.files, i, END) for i in range(2)]
    assert found == [[Span(0, 0, 4), Span(0, 4, 1), Span(0, 5, 1)], [Span(0, 6, 6)]]
    assert [trace.excerpt(piece, batches.files, BYTES, 3) for piece in found[0]] == ["abc", "", "d"]


def test_an_excerpt_is_one_line(tmp_path):
    text = 'a\n\t\x1b[31m\u2028"ü\u202e' * 100
    files = files_of([write(tmp_path / "0.npy", tokens_of(text))])
    shown = trace.excerpt(Span(0, 0, files[0].n_tokens), files, BYTES, 14)
    assert shown == 'a\\n\\t\\x1b[31m\\u2028"ü\\u202ea\\n' and shown.isprintable()


def test_names(tmp_path):
    files = files_of([write(tmp_path / "0.npy", tokens_of("abc", "de")), write(tmp_path / "1.npy", [1, 2])])
    with gzip.open(tmp_path / "0.csv.gz", "wt") as index:  # as Dolma writes it, but for the encoded name
        index.write("0,4,a%2C%0Ab,source.gz,1\n4,7,two,source.gz,2\n")
    names = trace.names_of(files[0])
    assert [names.at(i) for i in (0, 3, 4, 6, 7)] == ["a,\nb", "a,\nb", "two", "two", None]
    assert trace.names_of(files[1]) is None
    assert trace.named(files, "two") == [Span(0, 4, 3)] and trace.named(files, "three") == []
    with pytest.raises(RequestError, match="no token file has an index"):
        trace.named(files[1:], "two")


def test_a_damaged_index(tmp_path):
    files = files_of([write(tmp_path / "0.npy", [1, 2])])
    (tmp_path / "0.csv.gz").write_bytes(gzip.compress(b"0,2,a\nx,y,z\n"))
    with pytest.raises(RequestError, match="line 2"):
        trace.names_of(files[0])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_place_of_a_text_is_found(tmp_path_factory, data):
    documents = data.draw(st.lists(st.text("aü", max_size=12), min_size=1, max_size=6))
    text = data.draw(st.text("aü", min_size=1, max_size=3))
    searched = data.draw(st.integers(1, 20))
    files = files_of([write(tmp_path_factory.mktemp("tokens") / "0.npy", tokens_of(*documents))])
    expected, first = [], 0
    for document in documents:
        raw, wanted = document.encode(), text.encode()
        starts = [i for i in range(len(raw)) if raw.startswith(wanted, i)]
        expected += [Span(0, first + i, len(wanted)) for i in starts]
        first += len(raw) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "SEARCHED", searched)
        assert list(trace.containing(files, 0, text, BYTES)) == expected


def windows(files, folder):
    return Windows(files, 8)


def packed(files, folder):
    return Packed(files, 8, 2, END, folder)


def padded(files, folder):
    return Padded(files, 8, END, folder)


def mixture(files, folder):
    """With about half of the first file, and the others several times."""
    web, code = Ingredient("web", Windows(files[:1], 8), 0, 0.3), Ingredient("code", Windows(files[1:], 8), 1, 0.7, 2.6)
    return Mixture([web, code], seq_len=8, seed=3, folder=folder)


@pytest.mark.parametrize("source_of", [windows, packed, padded, mixture])
def test_what_holds_a_place(tmp_path, source_of):
    rng = np.random.default_rng(0)
    sizes = ((0, 100, 7, 40), (60, 1, 30), (5,))
    files = files_of(
        [write(tmp_path / f"{i}.npy", tokens_of(*("x" * size for size in file))) for i, file in enumerate(sizes)]
    )
    source = source_of(files, tmp_path)
    places = []
    for number, file in enumerate(files):
        for _ in range(20):
            start = int(rng.integers(0, file.n_tokens))
            places.append(Span(number, start, min(int(rng.integers(1, 20)), file.n_tokens - start)))
    expected = [
        [
            i
            for i in range(len(source))
            if any(
                span.file == place.file and place.start <= token < place.stop
                for span in source.spans(i)
                for token in range(span.start, span.start + span.length)
            )
        ]
        for place in places
    ]
    assert [source.holding(place) for place in places] == expected and any(expected)


@pytest.mark.parametrize("chunk", [1, 3])
def test_the_batches_that_hold_an_instance(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(trace, "READ_TOGETHER", 50)
    path = write(tmp_path / "t.npy", np.zeros(200))
    batches = batches_of([path], seq_len=2, global_batch=7, seed=3, chunk=chunk, folder=tmp_path)
    sampler = batches.sampler
    for epoch in (1, 2):
        found = trace.batches_with(batches, range(100), epoch)
        per_epoch = sampler.batches_per_epoch
        for i in range(100):
            numbers = range((epoch - 1) * per_epoch, epoch * per_epoch)
            assert found[i] == [n for n in numbers if i in sampler.take(n, 1)]
        assert sum(not batches for batches in found.values()) == 100 - per_epoch * 7
