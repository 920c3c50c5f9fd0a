"""Fingerprints: OLMo-core's own, and ours, which sees any change of what a batch holds and says which it was."""

import json
from dataclasses import replace
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import Instances, Positions, TokenSourceConfig
from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.data.files import remote
from olmo_hydra.data.files.token_file import open_file
from olmo_hydra.data.fingerprint import differences, fingerprint, of_olmo_core

DOLMA2 = KNOWN["dolma2"]
UINT32 = np.dtype("<u4")


def config(**changed: Any):
    typed = ["data=tokens", "+data.sources={web: {paths: [a]}}", "model.vocab_size=100278"]
    return replace(compose(typed).data, **changed)


def files_in(folder, n=2, tokens=1000, label="web"):
    for i in range(n):
        (np.arange(tokens, dtype=UINT32) + i).tofile(folder / f"{i}.npy")
    return [open_file(folder / f"{i}.npy", UINT32, label=label, name=f"mix/{i}.npy") for i in range(n)]


def test_olmo_cores_golden(tmp_path) -> None:
    """data.md, section 4; the second one from `NumpyPackedFSLDataset` of OLMo-core 3.0.0, run on such files."""
    files = files_in(tmp_path)
    windows = config(seq_len=32, max_target_seq_len=64)
    golden = "436c24012a6a0c5d0fb54e303604652d6da893f6b11f2d1c771ebc6a2aa415e0"
    assert of_olmo_core(windows, DOLMA2, files) == golden
    packed = config(seq_len=64, instances=Instances.packed, pack_files=8)
    golden = "2201a6c99c9ee0a2ad3071e1f176baeb9864b72f746461691c77324c5462a2a8"
    assert of_olmo_core(packed, DOLMA2, files) == golden
    assert (
        of_olmo_core(replace(packed, pack_files=1), DOLMA2, files)
        == "a1f985ac58741d1759ff6fc699afa859de2cfec96a81d572db03ba53385ac27e"
    )
    assert of_olmo_core(replace(packed, instances=Instances.padded), DOLMA2, files) is None
    assert fingerprint(windows, DOLMA2, files, 30)["olmo_core"] == of_olmo_core(windows, DOLMA2, files)


def test_it_is_json_and_equal_to_itself(tmp_path) -> None:
    files = files_in(tmp_path)
    now = fingerprint(config(), DOLMA2, files, 6)
    assert json.loads(json.dumps(now)) == now == fingerprint(config(), DOLMA2, files, 6)
    assert differences(json.loads(json.dumps(now)), now) == []


def test_the_folder_does_not_matter(tmp_path) -> None:
    both = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        both.append(fingerprint(config(root=name), DOLMA2, files_in(tmp_path / name), 6))
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({"seed": 7}, ["data.seed: 0 then, 7 now"]),
        (
            {"repetition_filter": True},
            ["data.repetition_filter: false then, true now", "data.filter_padding: null then, false now"],
        ),
        (
            {"instances": Instances.packed},
            ["data.instances: windows then, packed now", "data.pack_files: null then, 8 now"],
        ),
        ({"file_seed": 123}, ["data.file_seed: null then, 123 now"]),
    ],
)
def test_a_changed_setting_is_said(tmp_path, changed, lines) -> None:
    files = files_in(tmp_path)
    saved, now = (fingerprint(cfg, DOLMA2, files, 6) for cfg in (config(), config(**changed)))
    assert differences(saved, now) == lines


@pytest.mark.parametrize(
    "unused",
    [
        {"pack_files": 3},
        {"filter_padding": True},
        {"document_positions": Positions.restarted},
        {"mixture_seed": 5},
        {"mixture_tokens": 9},
    ],
)
def test_what_is_not_in_use_is_not_in_it(tmp_path, unused) -> None:
    files = files_in(tmp_path)
    assert fingerprint(config(), DOLMA2, files, 6) == fingerprint(config(**unused), DOLMA2, files, 6)


def test_rules_in_use_alone_are_in_it(tmp_path, monkeypatch) -> None:
    files = files_in(tmp_path)
    of_mixture = {"sources": {"web": TokenSourceConfig(paths=["a"], ratio=0.5)}, "repetition_filter": True}
    all_of_them = config(instances=Instances.packed, **of_mixture)
    saved = [fingerprint(cfg, DOLMA2, files, 6) for cfg in (config(), all_of_them)]
    for module in ("instances.document_index", "instances.repetition", "instances.mixture"):
        monkeypatch.setattr(f"olmo_hydra.data.{module}.VERSION", "new")
    now = [fingerprint(cfg, DOLMA2, files, 6) for cfg in (config(), all_of_them)]
    assert differences(saved[0], now[0]) == []
    assert [line.partition(":")[0] for line in differences(saved[1], now[1])] == [
        f"the rule of {name}" for name in ("documents", "filter", "mixture")
    ]


def test_ratios_of_a_mixture_are_in_it(tmp_path) -> None:
    files = files_in(tmp_path)
    mixtures = [config(sources={"web": TokenSourceConfig(paths=["a"], ratio=ratio)}) for ratio in (0.5, 0.25)]
    saved, now = (fingerprint(cfg, DOLMA2, files, 6) for cfg in mixtures)
    assert differences(saved, now) == ["data.sources.web.ratio: 0.5 then, 0.25 now"]


def test_changed_files_are_named(tmp_path) -> None:
    cfg, files = config(), files_in(tmp_path, n=4, tokens=100_000)
    saved = fingerprint(cfg, DOLMA2, files, 6)
    for i, at in enumerate((0, 200_000, 399_999)):  # in the beginning, the middle and the end
        with (tmp_path / f"{i}.npy").open("r+b") as file:
            file.seek(at)
            file.write(b"\xff")
    assert differences(saved, fingerprint(cfg, DOLMA2, files, 6)) == [
        f"mix/{i}.npy has other content" for i in range(3)
    ]
    files = files_in(tmp_path, n=4, tokens=100_000)
    now = [replace(files[0], n_tokens=5), replace(files[1], label="code"), replace(files[2], name="mix/new.npy")]
    assert differences(saved, fingerprint(cfg, DOLMA2, now, 5)) == [
        "mix/2.npy is gone",
        "mix/3.npy is gone",
        "mix/new.npy is new",
        "mix/0.npy had 100,000 tokens, and has 5",
        "mix/1.npy was labelled web, and is code",
        "6 instances then, 5 now",
    ]
    moved = fingerprint(cfg, DOLMA2, files[::-1], 6)
    assert differences(saved, moved) == ["the same files come in another order, or another number of times"]


def test_a_changed_mask_is_said(tmp_path) -> None:
    np.arange(10, dtype=UINT32).tofile(tmp_path / "a.npy")
    prints = []
    for value in (True, False):
        np.full(10, value).tofile(tmp_path / "mask.npy")
        file = open_file(tmp_path / "a.npy", UINT32, label="web", name="a.npy", mask=tmp_path / "mask.npy")
        prints.append(fingerprint(config(), DOLMA2, [file], 1))
    assert differences(*prints) == ["a.npy has another label mask"]


def test_many_changes_are_counted() -> None:
    saved: dict[str, Any] = {"rules": {}, "settings": {}, "instances": 1, "olmo_core": None}
    rows = [[f"{i}.npy", "web", 1, "<u4", "0", None] for i in range(25)]
    lines = differences(saved | {"files": rows}, saved | {"files": []})
    assert len(lines) == 11 and lines[0] == "0.npy is gone" and lines[-1] == "and 15 more files"
    assert differences({"text": None}, saved | {"files": rows})  # of a version before


@given(st.data())
def test_no_difference_is_silent(data) -> None:
    row = st.tuples(
        st.sampled_from("ab"), st.sampled_from("xy"), st.integers(1, 2), st.just("<u4"), st.sampled_from("01")
    )
    prints = st.fixed_dictionaries(
        {
            "rules": st.dictionaries(st.sampled_from("pq"), st.sampled_from("12")),
            "settings": st.dictionaries(st.sampled_from("st"), st.sampled_from([1, None])),
            "files": st.lists(row.map(lambda fields: [*fields, None]), max_size=3),
            "instances": st.integers(0, 1),
        }
    )
    saved, now = data.draw(prints), data.draw(prints)
    assert bool(differences(saved, now)) == (saved != now)


def test_remote_files_are_sampled_where_they_are(tmp_path) -> None:
    filesystem = fsspec.filesystem("memory")
    raw = np.arange(100_000, dtype=UINT32).tobytes()
    filesystem.pipe_file("/samples/a.npy", raw)
    (tmp_path / "a.npy").write_bytes(raw)
    places = [remote.find("memory://samples/a.npy", tmp_path / "copies"), tmp_path / "a.npy"]
    one, other = (
        fingerprint(config(), DOLMA2, [open_file(place, UINT32, label="web", name="a.npy")], 1) for place in places
    )
    assert one == other and not [*(tmp_path / "copies").rglob("a.npy")]
