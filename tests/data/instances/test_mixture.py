from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.instances.kinds import Packed, Part, Windows
from olmo_hydra.data.instances.mixture import Ingredient, Mixture, sample_sizes
from olmo_hydra.data.order import shuffled
from tests.data.token_files import END, files_of, write

SEQ_LEN = 4


def ingredients(folder, sizes, ratios, repetitions=None, chunk=1):
    """Sources of one file each, of so many instances and a token more. Tokens say where they stand."""
    paths = [write(folder / f"{i}.bin", np.arange(size * SEQ_LEN + 1), "<u4") for i, size in enumerate(sizes)]
    repetitions = repetitions or [1.0] * len(sizes)
    return [
        Ingredient("abc"[i], Windows(files_of([path], "<u4"), SEQ_LEN, chunk), i, ratios[i], repetitions[i])
        for i, path in enumerate(paths)
    ]


def mixed(mixture):
    """Of each instance its file and its number there."""
    spans = [mixture.spans(i) for i in range(len(mixture))]
    assert all(len(of_instance) == 1 and of_instance[0].length == SEQ_LEN for of_instance in spans)
    return [(span.file, span.start // SEQ_LEN) for (span,) in spans]


def test_a_mixture(tmp_path):
    # 20 * 0.75 is more than one and a half times 8: the total shrinks to 12 / 0.75 = 16, and so does the other's share.
    parts = ingredients(tmp_path, [8, 12], [0.75, 0.25], [1.5, 1.0])
    mixture = Mixture(parts, seq_len=SEQ_LEN, seed=7, folder=tmp_path)
    assert (len(mixture), mixture.sizes, mixture.padding) == (16, [12, 4], 0)
    assert mixture.parts == [Part(0, 12, (0,)), Part(12, 4, (1,))]
    assert mixture.dropped == 2 + 8 * SEQ_LEN  # the token more of each file, and 8 instances of the second
    first, second = shuffled(8, 7).tolist(), shuffled(12, 8).tolist()  # OLMo-core's rule: seed + i, all, then the first
    assert mixed(mixture) == [(0, i) for i in first + first[:4]] + [(1, i) for i in second[:4]]


def test_the_seed_decides_what_is_in(tmp_path):
    parts = ingredients(tmp_path, [50, 50], [1, 4])
    of_seeds = [
        {i for file, i in mixed(Mixture(parts, seq_len=SEQ_LEN, seed=seed, folder=tmp_path)) if file == 0}
        for seed in (0, 1, 2)
    ]
    assert all(len(chosen) == 12 for chosen in of_seeds) and len(set(map(frozenset, of_seeds))) == 3


def test_more_than_there_is(tmp_path):
    parts = ingredients(tmp_path, [10, 30], [0.5, 0.5])
    with pytest.raises(RequestError) as caught:
        Mixture(parts, seq_len=SEQ_LEN, seed=0, folder=tmp_path, tokens=201)
    assert (caught.value.key, caught.value.value) == ("data.mixture_tokens", 201)
    assert "data.mixture_tokens=80 at most" in caught.value.instead
    assert "data.sources.a.max_repetition=2.5" in caught.value.instead and ".b." not in caught.value.instead
    parts = ingredients(tmp_path, [10, 30], [0.5, 0.5], [2.5, 1])
    assert Mixture(parts, seq_len=SEQ_LEN, seed=0, folder=tmp_path, tokens=200).sizes == [25, 25]


def test_a_source_without_an_instance(tmp_path):
    with pytest.raises(RequestError) as caught:
        Mixture(ingredients(tmp_path, [3, 0], [0.5, 0.5]), seq_len=SEQ_LEN, seed=0, folder=tmp_path)
    assert caught.value.key == "data.sources.b"


@settings(deadline=None, max_examples=100)
@given(data=st.data(), n=st.integers(1, 3), chunk=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_ratios_and_repetitions_hold(tmp_path_factory, data, n, chunk, seed):
    def of_each(values):
        return data.draw(st.lists(values, min_size=n, max_size=n))

    sizes = of_each(st.integers(chunk, 40))
    ratios = of_each(st.integers(1, 100).map(lambda hundredths: hundredths / 100))
    repetitions = of_each(st.integers(10, 35).map(lambda tenths: tenths / 10))
    folder = tmp_path_factory.mktemp("mixture")
    parts = ingredients(folder, sizes, ratios, repetitions, chunk)
    mixture = Mixture(parts, seq_len=SEQ_LEN, seed=seed, folder=folder, chunk=chunk)
    for of_mixture, ratio in zip(mixture.sizes, ratios, strict=True):
        assert abs(of_mixture / chunk - len(mixture) / chunk * ratio / sum(ratios)) < 1
    assert len(mixture) <= sum(size // chunk * chunk for size in sizes)
    seen = Counter(mixed(mixture))
    for i, part in enumerate(parts):
        times = [seen[i, number] for number in range(len(part.source))]
        assert sum(times) == mixture.sizes[i] <= len(part.source) * part.max_repetition
        assert max(times) - min(times) <= 1
        runs = np.array([number for file, number in mixed(mixture) if file == i]).reshape(-1, chunk)
        assert (np.diff(runs, axis=1) == 1).all() and (runs[:, 0] % chunk == 0).all()
    bigger = [size // chunk for size in sizes]
    total = sum(mixture.sizes) // chunk
    if total < sum(bigger):  # no larger mixture keeps the ratios
        with pytest.raises(RequestError, match="ratios"):
            sample_sizes(parts, bigger, chunk * SEQ_LEN, (total + 1) * chunk * SEQ_LEN)


def test_a_mixture_of_packed_documents(tmp_path):
    documents = [[1] * n + [END] for n in (3, 5, 2, 6, 1, 4)]
    path = write(tmp_path / "0.bin", [*chain(*documents)])
    packed = Packed(files_of([path]), 8, 1, END, tmp_path)
    assert (len(packed), packed.padding) == (4, 32 - 27)
    other = Windows(files_of([write(tmp_path / "1.bin", np.zeros(80))]), 8)
    for ratio in (0.2, 0.3, 0.6):
        parts = [Ingredient("a", packed, 0, ratio, 2.0), Ingredient("b", other, 1, 1 - ratio, 2.0)]
        mixture = Mixture(parts, seq_len=8, seed=3, folder=tmp_path)
        spans = [span for i in range(len(mixture)) for span in mixture.spans(i)]
        assert mixture.padding == 8 * len(mixture) - sum(span.length for span in spans)
        assert mixture.dropped == 27 + 80 - sum(length for _, _, length in set(spans))
