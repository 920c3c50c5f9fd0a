"""From a config to files, batches, held-out documents and a fingerprint."""

import json
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.fingerprint import differences
from olmo_hydra.data.opened import Data, open_data
from olmo_hydra.data.text.prepare import prepare
from olmo_hydra.data.tokenizers import bpe, named

END = 256
FILES = {"web/bytes/0.npy": 130, "web/bytes/1.npy": 70, "code/bytes/0.npy": 64}  # tokens of each


@pytest.fixture
def root(tmp_path) -> Path:
    """Those files, each of its own byte, and a mix of them; two held-out files of a few documents."""
    for value, (name, n_tokens) in enumerate(FILES.items()):
        write(tmp_path / name, np.full(n_tokens, 65 + value))
    text = [*"Grüße".encode(), END, *b"second", END, END, *b"no end"]
    write(tmp_path / "val/bytes/0.npy", text)
    write(tmp_path / "val/bytes/1.npy", [*b"third", END])
    lines = [f"{name.partition('/')[0]},{name.replace('bytes', '{TOKENIZER}')}" for name in FILES]
    (tmp_path / "mix.txt").write_text("\n".join(lines))
    (tmp_path / "val.txt").write_text("v,val/{TOKENIZER}/0.npy\nv,val/{TOKENIZER}/1.npy\n")
    return tmp_path


def write(path: Path, tokens) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.asarray(tokens, "<u2").tofile(path)


def opened(root: Path, *typed: str, batch: int = 2) -> Data:
    always = ("data.tokenizer=bytes", "data.seq_len=16", f"train.global_batch={batch}")
    arguments = list(dict([argument.split("=", 1) for argument in (*always, *typed)]).items())
    return open_data(compose([f"{key}={value}" for key, value in arguments]), root / "cache", lambda _: None)


def of_mix(root: Path, *typed: str, batch: int = 2) -> Data:
    return opened(root, "data=mix", f"data.mix={root}/mix.txt", f"data.root={root}", *typed, batch=batch)


def of_tokens(root: Path, sources: str, *typed: str, batch: int = 2) -> Data:
    return opened(root, "data=tokens", f"data.root={root}", f"+data.sources={sources}", *typed, batch=batch)


def refused(*fragments: str):
    return pytest.raises(RequestError, match="(?s)" + ".*".join(fragments))


def test_a_mix(root) -> None:
    data = of_mix(root)
    assert [(file.name, file.label, file.n_tokens) for file in data.files] == [
        (name, name.partition("/")[0], n) for name, n in FILES.items()
    ]
    assert (len(data.source), data.source.dropped) == (8 + 4 + 4, 2 + 6)
    assert sorted(data.batches.batch(n).tokens_BT[b, 0] for n in range(8) for b in range(2)) == (
        [65] * 8 + [66] * 4 + [67] * 4
    )
    assert data.heldout() == {}
    assert data.description["domains"]["web"]["train"] == {"files": 2, "tokens": 200}
    assert data.fingerprint["instances"] == 16 and data.fingerprint["settings"]["eos"] == END


def test_the_folder_is_no_part_of_the_data(root, tmp_path) -> None:
    here = of_mix(root)
    moved = root.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    there = of_mix(moved, f"data.mix={moved}/mix.txt")
    assert here.fingerprint == there.fingerprint


@pytest.mark.parametrize("keep_copies", ["true", "false"])
def test_a_url_gives_what_the_folder_gives(root, keep_copies) -> None:
    filesystem = fsspec.filesystem("memory")
    for name in FILES:
        filesystem.pipe_file(f"/{root.name}/{name}", (root / name).read_bytes())
    for how in (
        of_mix,
        lambda root, *typed: of_tokens(root, "{web: {paths: ['web/*/*.npy', code/bytes/0.npy]}}", *typed),
    ):
        here = how(root)
        there = how(root, f"data.root=memory://{root.name}", f"data.keep_copies={keep_copies}")
        assert differences(here.fingerprint, there.fingerprint) == []
        for n in range(8):
            assert np.array_equal(here.batches.batch(n).tokens_BT, there.batches.batch(n).tokens_BT)
    assert len([*root.glob("cache/files/*/*.npy")]) == (3 if keep_copies == "true" else 0)


def test_patterns(root) -> None:
    write(root / "web/bytes/10.npy", [1] * 16)
    (root / "web/folder.npy").mkdir()
    data = of_tokens(
        root,
        f"{{code: {{paths: [{root}/code/bytes/0.npy]}}, web: {{paths: ['web/**/*.npy', web/../web/bytes/0.npy]}}}}",
    )
    names = ["web/bytes/0.npy", "web/bytes/1.npy", "web/bytes/10.npy", "web/bytes/0.npy"]
    assert [file.name for file in data.files] == ["code/bytes/0.npy", *names]
    assert data.batches.labels == ["code", "web"]
    with refused(r"data\.sources\.web\.paths=\[absent/\*\.npy\]|absent/\*\.npy", "matches no file"):
        of_tokens(root, "{web: {paths: ['absent/*.npy']}}")
    with refused("No such file", "absent.npy"):
        of_tokens(root, "{web: {paths: [absent.npy]}}")


def test_label_masks(root) -> None:
    (np.arange(130) % 2 == 0).tofile(root / "0.mask")
    np.ones(70, bool).tofile(root / "1.mask")
    data = of_tokens(root, "{web: {paths: ['web/bytes/*'], label_masks: ['*.mask']}}")
    assert [file.mask.path.name for file in data.files] == ["0.mask", "1.mask"]
    labels_BT = np.concatenate([data.batches.batch(n).labels_BT for n in range(6)])
    assert {tuple(row[row != -100].tolist()) for row in labels_BT} == {(65,) * 7, (66,) * 15}
    assert data.fingerprint["files"][0][5] is not None
    with refused("label_masks", "1 files for 2 token files"):
        of_tokens(root, "{web: {paths: ['web/bytes/*'], label_masks: [0.mask]}}")


def test_files_in_another_order(root) -> None:
    names = [file.name for file in of_mix(root, "data.file_seed=1").files]
    assert names == [[*FILES][i] for i in (1, 2, 0)]  # random.Random(1).shuffle([0, 1, 2])


def test_a_mixture(root) -> None:
    data = of_tokens(root, "{web: {paths: ['web/bytes/*'], ratio: 0.5}, code: {paths: ['code/bytes/*'], ratio: 0.5}}")
    batches = [data.batches.batch(n) for n in range(data.sampler.batches_per_epoch)]
    assert sum(batch.by_label_BL.sum(axis=0) for batch in batches).tolist() == [64, 64]
    tokens = np.concatenate([batch.tokens_BT[:, 0] for batch in batches])
    assert (tokens == 67).sum() == 4
    assert data.fingerprint["settings"]["sources.web.ratio"] == 0.5
    with refused("max_repetition"):
        of_tokens(
            root,
            "{web: {paths: ['web/bytes/*'], ratio: 0.5}, code: {paths: ['code/bytes/*'], ratio: 0.5}}",
            "data.mixture_tokens=1600",
        )
    with refused("data.mixture_tokens=16", "1 instances of 16 tokens", "data.mixture_tokens=32 at least"):
        of_tokens(root, "{web: {paths: ['web/bytes/*'], ratio: 1}}", "data.mixture_tokens=16")


def test_heldout_files(root) -> None:
    data = of_mix(root, f"data.heldout_mix={root}/val.txt")
    (documents,) = data.heldout().values()
    assert [(d.name, bytes(d.tokens.tolist()).decode(), d.n_bytes) for d in documents] == [
        ("val/bytes/0.npy:0", "Grüße", 7),
        ("val/bytes/0.npy:1", "second", 6),
        ("val/bytes/1.npy:0", "third", 5),
    ]
    assert data.description["domains"]["v"] == {
        "train": {"files": 0, "tokens": 0},
        "heldout": {"files": 2, "tokens": 28},
    }
    limits = ["data.heldout_bytes=9", "data.heldout_document_bytes=4"]
    cut = of_mix(root, f"data.heldout_mix={root}/val.txt", *limits).heldout()["v"]
    assert [bytes(d.tokens.tolist()).decode() for d in cut] == ["Grü", "seco", "t"]


def test_heldout_files_are_not_trained_on(root) -> None:
    """Whatever they are called."""
    write(root / "val/bytes/1.npy", np.full(70, 66))
    with refused("also trained on", "web/bytes/1.npy of web", "val/bytes/1.npy"):
        of_mix(root, f"data.heldout_mix={root}/val.txt")


def test_names_of_olmo_core_need_a_root(root) -> None:
    with refused("data.root=null", "says nowhere to find the files of data.mix=OLMo-mix-0925"):
        opened(root, "data=mix", "data.mix=OLMo-mix-0925")
    with refused("data.heldout_mix=c4-ppl-validation"):
        of_mix(root, "data.root=null", "data.heldout_mix=c4-ppl-validation")


def test_dolma2_is_not_fetched_to_train_on_its_files(root, monkeypatch) -> None:
    def build(name, **_):
        raise RequestError("cannot be downloaded")

    monkeypatch.setattr(named, "build", build)
    np.full(160, 100_277, "<u4").tofile(root / "a.npy")
    typed = ("data.tokenizer=dolma2", "model.vocab_size=100278")
    data = of_tokens(root, "{web: {paths: [a.npy]}}", *typed)
    assert data.batches.batch(0).tokens_BT.max() == data.tokenizer.pad == 100_277 and data.tokenizer.eos == 100_257
    with refused("cannot be downloaded"):
        data.tokenizer.encode("text")


def test_a_tokenizer_larger_than_the_model(root) -> None:
    bpe.train(["some text to train on"], 265).save(root)
    tokenizer = f"data.tokenizer={root}/tokenizer.json"
    data = of_mix(root, tokenizer, f"data.root={root}", "model.vocab_size=265", "data.mix=" + tokenizer_mix(root))
    assert data.batches.cut.vocab_size == 265
    with refused("model.vocab_size=264", "265 tokens of data.tokenizer", "model.vocab_size=265"):
        of_mix(root, tokenizer, f"data.root={root}", "model.vocab_size=264", "data.mix=" + tokenizer_mix(root))


def tokenizer_mix(root: Path) -> str:
    (root / "any.txt").write_text("web,web/bytes/../{TOKENIZER}.npy")
    write(root / "web/tokenizer.npy", np.full(64, 3))
    return str(root / "any.txt")


@pytest.mark.parametrize(
    ("base", "paths", "names"),
    [
        ("{root}", ["web/bytes/*.npy"], ["web/bytes/0.npy", "web/bytes/1.npy"]),
        ("{root}", ["{root}/web/bytes/*.npy"], ["web/bytes/0.npy", "web/bytes/1.npy"]),
        ("{root}", ["./web/bytes/0.npy", "web/bytes/1.npy"], ["web/bytes/0.npy", "web/bytes/1.npy"]),
        ("{root}/code", ["{root}/web/bytes/0.npy", "bytes/0.npy"], ["0.npy", "bytes/0.npy"]),
        ("{root}/val", ["{root}/web/bytes/0.npy", "{root}/code/bytes/0.npy"], ["0.npy", "0.npy (2)"]),
    ],
)
def test_what_files_are_called_does_not_depend_on_the_machine(root, base, paths, names) -> None:
    typed = ", ".join(repr(path.format(root=root)) for path in paths)
    data = of_tokens(root, f"{{web: {{paths: [{typed}]}}}}", f"data.root={base.format(root=root)}")
    assert [row[0] for row in data.fingerprint["files"]] == names


def test_a_prepared_corpus(cfg, tmp_path) -> None:
    corpus = prepare(cfg, tmp_path / "made", lambda _: None)
    typed = ["data=prepared", f"data.path={corpus.folder}", "model.vocab_size=512"]
    data = opened(tmp_path, *typed)
    assert sum(file.n_tokens for file in data.files) == sum(file.n_tokens for file in corpus.train_files())
    assert data.heldout().keys() == {"asyncio", "formats"}
    with refused("prepared with bytes", "data.tokenizer=bytes"):
        opened(tmp_path, *typed, "data.tokenizer=bpe:300")
    with refused("data.path", "no such folder", "data prepare"):
        opened(tmp_path, "data=prepared", f"data.path={tmp_path}/absent")
    opened(tmp_path, *typed, f"data.corpus={corpus.fingerprint}")
    with refused("data.corpus=abab", corpus.fingerprint, "data.corpus=null"):
        opened(tmp_path, *typed, "data.corpus=" + "ab" * 32)


def test_the_tokenizer_of_a_corpus_is_told_by_what_it_is(cfg, tmp_path) -> None:
    corpus = prepare(replace(cfg, tokenizer="bpe:300"), tmp_path / "made", lambda _: None)
    typed = ["data=prepared", f"data.path={corpus.folder}", "model.vocab_size=512"]
    for name, tokenizer in (("same", corpus.tokenizer), ("other", bpe.train(["other words, and yet others"] * 9, 270))):
        (tmp_path / name).mkdir()
        tokenizer.save(tmp_path / name)
    (tmp_path / "same/tokenizer.json").write_text(
        json.dumps(json.loads((tmp_path / "same/tokenizer.json").read_text()), indent=3)
    )
    assert opened(tmp_path, *typed, f"data.tokenizer={tmp_path}/same/tokenizer.json").tokenizer.vocab_size == 300
    with refused("prepared with bpe:300", "data.tokenizer=bpe:300"):
        opened(tmp_path, *typed, f"data.tokenizer={tmp_path}/other/tokenizer.json")


def test_less_than_a_batch(root) -> None:
    with refused("train.global_batch=17", "16 instances of 16 tokens", "train.global_batch=16 at most"):
        of_mix(root, batch=17)
    with refused("train.global_batch=17", "the mixture holds"):
        of_tokens(root, "{web: {paths: ['web/bytes/*'], ratio: 1}}", batch=17)
    write(root / "empty/0.npy", [])
    with refused("holds no token\n", f"{root}/empty/0.npy"):
        of_tokens(root, "{web: {paths: ['empty/*']}}")
