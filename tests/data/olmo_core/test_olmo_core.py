"""The same files, order and batches as the library itself, run in a process of its own.

Its interpreter is that of OLMO_HYDRA_PEER_PYTHON, or this one if it has olmo_core.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from olmo_hydra.config.data import Instances, TokensConfig
from olmo_hydra.config.tokenizers import Ids
from olmo_hydra.data import fingerprint
from olmo_hydra.data.instances.kinds import Windows
from olmo_hydra.data.instances.mixture import Ingredient, Mixture
from olmo_hydra.data.instances.repetition import repeats
from olmo_hydra.data.order import shuffled
from olmo_hydra.data.text.build import Settings
from olmo_hydra.data.text.prepare import prepare_into
from tests.components import require_component
from tests.data.token_files import batches_of, files_of, write

INSTALL = (
    'python -m venv peer && peer/bin/pip install ai2-olmo-core==3.0.0 "torch>=2.10", '
    "and OLMO_HYDRA_PEER_PYTHON=peer/bin/python"
)
VOCAB = {"uint8": 200, "uint16": 50_000, "uint32": 100_278}


@pytest.fixture(scope="module")
def olmo_core():
    """Asks the library."""
    python = os.environ.get("OLMO_HYDRA_PEER_PYTHON") or (importlib.util.find_spec("olmo_core") and sys.executable)
    require_component("olmo_core", bool(python), INSTALL)
    environment = os.environ | {"OLMO_DATA_PREP_WORKERS": "1", "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(
        [python, Path(__file__).with_name("driver.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def ask(what, **of):
        driver.stdin.write(json.dumps({"what": what} | of, default=str) + "\n")
        driver.stdin.flush()
        return json.loads(driver.stdout.readline())

    yield ask
    driver.stdin.close()
    assert driver.wait(30) == 0


def text_files(folder, rng, dtype, seq_len, *, packed):
    """Files of documents, some with repetitions. To be packed they have different lengths: the order of equal ones is
    up to the sort of the library's NumPy."""
    end = VOCAB[dtype] - 2
    n_files = int(rng.integers(1, 6))
    lengths = rng.permutation(np.arange(1, seq_len)) if packed else rng.integers(1, 3 * seq_len, 8 * n_files)
    paths, masks = [], []
    for i in range(n_files):
        documents = []
        for length in lengths[i::n_files].tolist():
            document = rng.integers(0, end, length)
            if rng.random() < 0.3:
                document = np.resize(document[: int(rng.integers(1, 4))], length)
            document[-1] = end
            documents.append(document)
        if packed and i == 0:  # one that is cut
            documents.append(np.append(rng.integers(0, end, int(rng.integers(seq_len, 2 * seq_len))), end))
        tokens = np.concatenate([*documents, rng.integers(0, end, int(rng.integers(0, 5)))])
        paths.append(write(folder / f"{i}.npy", tokens, dtype))
        masks.append(write(folder / f"{i}.mask", rng.random(len(tokens)) < 0.9, bool))
    return paths, masks


def compare(olmo_core, folder, seed, *, instances=Instances.windows, ours_first=False):
    """Two epochs of a run of random shape, on each of its processes."""
    rng = np.random.default_rng(seed)
    packed = instances is Instances.packed
    dtype = ["uint8", "uint16", "uint32"][seed % 3]
    seq_len = int(2 ** rng.integers(5, 8)) if packed else int(rng.integers(4, 100))
    pack_files = int(rng.integers(1, 4)) if packed else 1
    chunk = int(rng.integers(1, 4)) if instances is Instances.windows else 1
    processes = int(rng.choice([1, 2, 3]))
    order_seed = int(rng.integers(0, 2**31))
    is_masked, is_filtered = bool(rng.random() < 0.5), bool(rng.random() < 0.7)
    end, pad = VOCAB[dtype] - 2, VOCAB[dtype] - 1
    paths, masks = text_files(folder, rng, dtype, seq_len, packed=packed)
    of_both = {"paths": paths, "seq_len": seq_len, "dtype": dtype, "pack_files": pack_files, "seed": order_seed}
    of_both |= {"vocab_size": VOCAB[dtype], "end": end, "pad": pad, "repetition_filter": is_filtered}
    of_both |= {"folder": folder, "masks": masks if is_masked else None}
    ours = batches_of(
        **of_both,
        global_batch=processes,
        instances=instances,
        chunk=chunk,
        document_mask=True,
        filter_padding=packed,
    )
    global_batch = processes * int(rng.integers(1, 1 + max(1, len(ours.source) // (2 * processes))))
    if len(ours.source) < global_batch:
        return 0
    sampler = type(ours.sampler)(len(ours.source), global_batch, seed=order_seed, chunk=chunk, folder=folder)
    ours.sampler = sampler
    epochs = [1, int(rng.integers(2, 50))]
    if ours_first:
        for epoch in epochs:
            sampler.order.make(epoch)
    written = {path: path.stat().st_mtime_ns for path in folder.glob("global_indices*.npy")}
    theirs = olmo_core(
        "run",
        **of_both,
        instances=instances.value,
        max_target_seq_len=chunk * seq_len if chunk > 1 else None,
        processes=processes,
        epochs=epochs,
        global_batch=global_batch,
    )
    assert theirs["instances"] == len(ours.source)
    cfg = TokensConfig(
        instances=instances,
        seq_len=seq_len,
        max_target_seq_len=chunk * seq_len if chunk > 1 else None,
        pack_files=pack_files,
    )
    of_tokenizer = Ids(VOCAB[dtype], eos=end, pad=pad)
    if instances is not Instances.padded:
        assert theirs["fingerprint"] == fingerprint.of_olmo_core(cfg, of_tokenizer, ours.files)
    assert Path(theirs["order"]).name == sampler.order.file(epochs[-1]).name
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())  # it took ours
    n_batches = 0
    for epoch in epochs:
        for rank in range(processes):
            of_rank = theirs["batches"][f"{epoch} {rank}"]
            assert len(of_rank) == sampler.batches_per_epoch
            for row, batch in enumerate(of_rank):
                mine = ours.batch((epoch - 1) * sampler.batches_per_epoch + row, rank, processes)
                assert mine.instances_B.tolist() == batch["index"]
                assert mine.tokens_BT.tolist() == batch["input_ids"]
                assert mine.labels_BT.tolist() == batch["labels"]
                if is_filtered:
                    assert (~mine.masked_B).tolist() == batch["instance_mask"]
                for segments_T, lengths in zip(mine.segments_BT, batch.get("doc_lens", []), strict=False):
                    assert np.bincount(segments_T).tolist() == [length for length in lengths if length]
                n_batches += 1
    return n_batches


@pytest.mark.parametrize("instances", Instances)
def test_batches_are_the_librarys(olmo_core, tmp_path, instances):
    compared = 0
    for seed in range(12):
        (folder := tmp_path / str(seed)).mkdir()
        compared += compare(olmo_core, folder, seed, instances=instances, ours_first=seed % 2 == 0)
    assert compared > 100


def test_verdicts_of_the_filter_are_the_librarys(olmo_core):
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(500):
        period = int(rng.integers(1, 16))
        repeated = np.resize(rng.integers(0, 5, period), int(rng.integers(29 * period, 34 * period)))
        texts.append([*rng.integers(0, 5, 20).tolist(), *repeated.tolist(), *rng.integers(0, 5, 20).tolist()])
    lengths_B = np.array([len(text) for text in texts])
    tokens_BT = np.zeros((len(texts), max(lengths_B)), np.int32)
    for b, text in enumerate(texts):
        tokens_BT[b, : len(text)] = text
    caught = repeats(tokens_BT, lengths_B)
    assert caught.tolist() == olmo_core("filtered", texts=texts) and 100 < caught.sum() < 400


@pytest.mark.parametrize("tokens", [None, 320])
@pytest.mark.parametrize("chunk", [1, 2])
def test_mixtures_are_the_librarys(olmo_core, tmp_path, tokens, chunk):
    # Ratios that binary numbers hold exactly: with others the library may round a size down by one more. Where chunks
    # stay together it writes its sample as int64 and reads it as uint32, so that every second number is 0.
    seq_len, sizes, ratios, repetitions = 4, [31, 60, 20], [0.5, 0.25, 0.25], [2.0, 1.0, 3.0]
    firsts = [0, 1000, 2000]
    ingredients, sources = [], []
    for i, size in enumerate(sizes):
        tokens_of_file = np.arange(firsts[i], firsts[i] + size * seq_len)
        files = files_of([write(tmp_path / f"{i}.bin", tokens_of_file, "<u4")], "<u4")
        ingredients.append(Ingredient("abc"[i], Windows(files, seq_len, chunk), i, ratios[i], repetitions[i]))
        sources.append([firsts[i], size * seq_len, ratios[i], repetitions[i]])
    ours = Mixture(ingredients, seq_len=seq_len, seed=11, folder=tmp_path / "order", chunk=chunk, tokens=tokens)
    theirs = olmo_core(
        "mixture", sources=sources, seq_len=seq_len, chunk=chunk, seed=11, tokens=tokens, folder=tmp_path / "work"
    )
    starts = np.cumsum([0, *ours.sizes])
    for i, (size, of_source) in enumerate(zip(ours.sizes, theirs["firsts"], strict=True)):
        mine = [firsts[i] + ours.spans(int(starts[i]) + k)[0].start for k in range(size)]
        assert 0 <= size - len(of_source) <= chunk
        theirs_of_source = of_source if chunk == 1 else of_source[::2]
        assert mine[: len(theirs_of_source)] == theirs_of_source
    if tokens:
        assert ours.sizes == theirs["sizes"] and sum(ours.sizes) * seq_len == tokens


def test_it_reads_the_orders_of_long_epochs(olmo_core, tmp_path):
    paths = [write(tmp_path / "0.npy", np.zeros(40_000), "uint8")]
    of_both = {"paths": paths, "seq_len": 4, "dtype": "uint8", "seed": 34521, "end": 1, "pad": 2, "vocab_size": 3}
    theirs = olmo_core(
        "run", **of_both, instances="windows", max_target_seq_len=None, masks=None, repetition_filter=False,
        folder=tmp_path, processes=1, epochs=[3], global_batch=10_000,
    )  # fmt: skip
    assert np.array_equal(np.fromfile(theirs["order"], "<u4"), shuffled(10_000, 34524))
    ours = batches_of(**of_both, global_batch=10_000, folder=tmp_path)
    (batch,) = theirs["batches"]["3 0"]
    assert ours.batch(2).instances_B.tolist() == batch["index"]


def test_it_reads_a_prepared_corpus(olmo_core, cfg, tmp_path):
    corpus = prepare_into(cfg, tmp_path / "corpus", Settings(workers=1, shard_tokens=100_000), lambda line: None)
    end = corpus.tokenizer.eos
    files = [file for file in corpus.manifest["files"] if file["split"] == "train"]
    assert len(files) > len(corpus.domains)  # shards
    for file in files:
        found = olmo_core("documents", path=corpus.folder / file["path"], dtype="uint16", end=end)
        bounds = [[entry.start, entry.end] for entry in corpus.entries(file)]
        assert found == {"companion": bounds, "tokens": bounds}
    paths = [corpus.folder / file["path"] for file in files]
    of_both = {"paths": paths, "seq_len": 64, "dtype": "uint16", "seed": 5, "end": end, "pad": 300, "vocab_size": 301}
    ours = batches_of(**of_both, global_batch=8, folder=tmp_path)
    theirs = olmo_core(
        "run", **of_both, instances="windows", max_target_seq_len=None, masks=None, repetition_filter=False,
        folder=tmp_path, processes=1, epochs=[1], global_batch=8,
    )  # fmt: skip
    for n, batch in enumerate(theirs["batches"]["1 0"]):
        assert ours.batch(n).tokens_BT.tolist() == batch["input_ids"]
