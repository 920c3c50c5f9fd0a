"""Comparisons: the arithmetic by hand, and which differences are found, named and judged."""

import json
import math
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import reference
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.compare import LogitDifference, divergence, first_over, stage_errors, tensor_difference
from olmo_hydra.interop.hf_config import to_hf
from olmo_hydra.interop.hf_weights import HFWeights
from olmo_hydra.interop.verify import verify
from olmo_hydra.interop.weights import open_weights
from olmo_hydra.interop.write_hf import write_hf
from olmo_hydra.interop.write_run import write_run
from tests.interop.conftest import YARN, InMemory

FEW = {"prompts": 2, "length": 12}
NOTHING = Companions({})


def test_divergence_by_hand():
    even, uneven = np.log([[0.5, 0.5]]), np.log([[0.75, 0.25]])
    np.testing.assert_allclose(divergence(even + 7, uneven - 3), 0.5 * math.log(4 / 3), rtol=1e-12)
    np.testing.assert_allclose(divergence(uneven, even), 0.75 * math.log(1.5) - 0.25 * math.log(2), rtol=1e-12)


def test_logits_by_hand():
    difference = LogitDifference((1, 2, 10))
    a_TV, b_TV = np.array([[3.0, 2, 1, 0], [0, 0.5, 2, 1]]), np.array([[2.0, 1, 3, 0], [0, 0.5, 2, 1]])
    difference.add(b_TV, b_TV)
    difference.add(a_TV, b_TV)
    kl = divergence(a_TV, b_TV)[0]
    assert difference.max_abs == 2 and difference.worst_prompt == 1
    np.testing.assert_allclose(difference.spread, np.std([*a_TV, *b_TV], axis=-1).mean())
    np.testing.assert_allclose([difference.kl_max, difference.kl_mean], [kl, kl / 4])
    assert [difference.overlap(k) for k in (1, 2, 10)] == [0.75, 1.75, 4]


def test_logits_that_are_not_finite_are_infinitely_far():
    difference = LogitDifference((1,))
    difference.add(np.zeros((1, 3)), np.array([[0, np.nan, 0]]))
    assert difference.kl_max == difference.kl_mean == difference.max_abs == np.inf


def test_tensors_by_hand():
    rng = np.random.default_rng()
    table = rng.normal(size=(3000, 2000)).astype(np.float32)  # more than is compared at a time
    same = tensor_difference("table", table, table.copy())
    assert same.equal and same.equal_rounded and same.relative_error == same.max_abs == 0
    spoilt = table.copy()
    spoilt[2500] *= 1.5
    found = tensor_difference("table", table, spoilt)
    assert not found.equal_rounded
    np.testing.assert_allclose(found.relative_error, 0.5, rtol=1e-6)
    np.testing.assert_allclose(found.max_abs, np.abs(table[2500]).max() / 2, rtol=1e-6)
    rounded = tensor_difference("table", table, table.astype(ml_dtypes.bfloat16))
    assert rounded.equal_rounded and not rounded.equal
    assert 0 < rounded.relative_error < 2**-8


@pytest.mark.parametrize("value, error", [(np.nan, np.inf), (np.inf, np.inf), (-0.0, 0.0)])
def test_odd_values_are_not_equal(value, error):
    a, b = np.zeros(5, np.float32), np.array([0, 0, value, 0, 0], np.float32)
    found = tensor_difference("gain", a, b)
    assert not found.equal and found.relative_error == error
    assert tensor_difference("gain", b, b.copy()).equal


def test_stages_by_hand():
    a_LTD = np.random.default_rng().normal(size=(3, 4, 5))
    b_LTD = a_LTD * np.array([1, 1.001, 1.1])[:, None, None]
    errors = stage_errors(a_LTD, b_LTD)
    np.testing.assert_allclose(list(errors.values()), [0, 1e-3, 0.1], rtol=1e-9)
    assert [first_over(errors, limit) for limit in (1e-4, 1e-2, 1)] == ["layer 0", "layer 1", None]
    assert first_over({"embedding": math.nan}, 1) == "embedding"


def test_a_model_is_itself(in_memory):
    weights = in_memory(place="here")
    report = verify(weights, weights, **FEW)
    assert report.passed and report.first_difference is None and not report.rounding_only
    assert report.limits["logits"] == 2e-5 * max(1, report.logits.pop("spread"))
    assert report.tensors["count"] == report.tensors["equal"] == 4 * 11 + 3
    assert report.logits == {"kl_mean": 0, "kl_max": 0, "max_abs": 0, "overlap": {"10": 10}}
    assert report.a == report.b == {"place": "here", "dtype": "float32", "logits_from": "olmo_hydra"}


def test_padding_and_a_pattern_written_twice_are_no_difference(in_memory):
    one = in_memory(0)
    table, head = np.zeros((56, 24), np.float32), np.ones((24, 56), np.float32)
    table[:50], head[:, :50] = one.tensors["embedding.weight"], one.tensors["head.weight"]
    other = in_memory(1, vocab_multiple=8, window_pattern=["sliding", "full"] * 2)
    other.tensors |= {
        "embedding.weight": table,
        "head.weight": head,
        "final_norm.weight": one.read("final_norm.weight"),
    }
    for name in other.tensors:
        if name.startswith("blocks."):
            _, layer, inner = name.split(".", 2)
            source = one.tensors[f"blocks.{int(layer) % 2}.{inner}"]
            other.tensors[name] = source[[int(layer) // 2]]
    for report in (verify(one, other, **FEW), verify(other, one, **FEW)):
        assert report.passed and report.tensors["equal"] == report.tensors["count"] == 47
        assert report.logits["max_abs"] <= 2e-6


def test_a_spoilt_layer_is_named(in_memory):
    weights = in_memory()
    gate = weights.read("blocks.0.mlp.gate.weight").copy()
    gate[1, 3] += 0.5  # of layer 2: the second of those at the first of two positions
    report = verify(weights, weights.changed("spoilt", blocks__0__mlp__gate__weight=gate), **FEW)
    assert not report.passed and report.tensors["equal"] == 46
    assert report.tensors["worst"]["name"] == "layer 2: mlp.gate.weight"
    assert report.first_difference["stage"] == "layer 2"
    assert {failure.partition(":")[0] for failure in report.failures} == {
        *("tensor layer 2", "largest difference of two logits", "largest KL")
    }


def test_a_row_that_no_prompt_reads_is_found(in_memory):
    weights = in_memory()
    table = weights.read("embedding.weight").copy()
    read = np.random.default_rng(0).integers(0, 50, (2, 12), dtype=np.int32)  # the prompts, as verify draws them
    table[np.setdiff1d(np.arange(50), read)[0]] *= 1.001
    report = verify(weights, weights.changed("spoilt", embedding__weight=table), **FEW)
    assert report.logits["max_abs"] == 0
    assert len(report.failures) == 1 and "embedding.weight: relative error 0.001" in report.failures[0]
    assert report.first_difference["stage"] is None
    assert (
        verify(weights, weights.changed("spoilt", embedding__weight=table), tensor=0.01, **FEW).tensors["equal"] == 46
    )


def test_rounding_is_judged_by_the_distribution(in_memory):
    weights = in_memory()
    rounded = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in weights.tensors.items()}
    narrow = weights.changed("rounded")
    narrow.tensors = rounded
    report = verify(weights, narrow, **FEW, top_k=[1, 5])
    assert report.limits["logits"] is None and report.limits["kl_mean"] == 1.5e-3 and report.limits["overlap"] == 9
    assert report.b["dtype"] == "bfloat16"
    assert (report.tensors["equal"], report.tensors["equal_when_rounded"]) == (0, 47)
    assert not [failure for failure in report.failures if failure.startswith("tensor")]
    assert report.logits["max_abs"] > 1e-3 and set(report.logits["overlap"]) == {"1", "5", "10"}
    assert not verify(weights, narrow, **FEW, logits=1e-3).passed
    assert not verify(weights, narrow, **FEW, kl=1e-9).passed


@pytest.mark.parametrize("scale", [0.1, 1, 8])
def test_the_limit_of_logits_grows_with_their_spread(in_memory, scale):
    weights = in_memory()
    head = weights.read("head.weight") * np.float32(scale)
    one = weights.changed("one", head__weight=head)
    close = weights.changed("close", head__weight=head * np.float32(1 + 2e-6))
    report = verify(one, close, **FEW)
    assert report.passed, report.failures
    assert report.limits["logits"] == 2e-5 * max(1, report.logits["spread"])
    np.testing.assert_allclose(report.logits["spread"], scale, rtol=0.5)
    assert verify(one, close, **FEW, logits=2e-5).passed is (scale <= 1), "a limit that is asked for stays"
    spoilt = head.copy()
    spoilt[3, 5] += 0.01 * scale
    assert not verify(one, weights.changed("spoilt", head__weight=spoilt), **FEW).passed


def test_a_weight_that_is_no_number_fails_and_is_json(in_memory):
    weights = in_memory()
    broken = weights.read("final_norm.weight").copy()
    broken[0] = np.nan
    spoilt = weights.changed("broken", final_norm__weight=broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's, which would be on stderr
        report, itself = verify(weights, spoilt, **FEW), verify(spoilt, spoilt, **FEW)
    assert report.failures[1:] == ["logits are not finite in broken"]
    assert itself.failures == ["logits are not finite in broken"] and itself.first_difference is None
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert found["logits"]["kl_max"] is None and found["tensors"]["worst"]["relative_error"] is None


def test_logits_that_are_infinite_only_on_one_side_name_it():
    difference = LogitDifference((1,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        difference.add(np.array([[0, np.inf, 0]]), np.zeros((1, 3)))
        difference.add(np.zeros((1, 3)), np.zeros((1, 3)))
    assert difference.finite == (False, True)


def test_tensors_of_one_narrow_dtype_that_differ_in_bits_are_mentioned(in_memory):
    weights = in_memory()
    narrow = weights.changed("narrow")
    narrow.tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in weights.tensors.items()}
    head = narrow.read("head.weight").copy()
    head.view(np.uint16)[3, 5] ^= 1
    report = verify(narrow, narrow.changed("bit", head__weight=head), **FEW)
    assert report.passed and report.notes == ["1 of 47 tensors differ bit by bit; within the rounding of bfloat16"]
    assert not verify(narrow, narrow, **FEW).notes
    assert not verify(weights, narrow, **FEW).notes, "equal once rounded"


def test_other_models_fail_or_are_refused(in_memory):
    weights = in_memory(0)
    report = verify(weights, in_memory(0, window=1000), **FEW)
    assert "the models differ: window is 5 and 1000" in report.failures
    with pytest.raises(RequestError, match="d_ff is 40 and 48"):
        verify(weights, in_memory(0, d_ff=48), **FEW)
    for wrong in ({"prompts": 0}, {"length": 0}, {"kl": -1.0}, {"logits": math.nan}, {"top_k": [0]}):
        with pytest.raises(RequestError, match="--"):
            verify(weights, weights, **{**FEW, **wrong})


def test_windows_that_no_prompt_passes_are_mentioned(in_memory):
    weights = in_memory()
    (note,) = verify(weights, weights, prompts=1, length=5).notes
    assert "the window of 5" in note and "--prompts 1 --length 10" in note
    assert not verify(weights, weights, prompts=1, length=6).notes


@pytest.fixture
def places(in_memory, tmp_path, monkeypatch) -> None:
    """A folder and a run of one model, and a run of another, in the current folder."""
    monkeypatch.chdir(tmp_path)
    weights = in_memory()
    write_hf(weights, tmp_path / "folder", NOTHING)
    write_run(weights, tmp_path / "run", NOTHING, "memory")
    write_run(in_memory(), tmp_path / "other", NOTHING, "memory")


def test_command(places, capsys):
    few = ["--prompts", "2", "--length", "12"]
    assert main(["convert", "verify", "folder", "run@0", *few]) == 0
    out, err = capsys.readouterr()
    assert "47 of 47 equal bit for bit" in out and out.endswith("passed\n") and err == ""
    assert main(["convert", "verify", "folder", "other", *few, "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["passed"] is False and found["first_difference"]["stage"] == "embedding"
    assert err.startswith("failed: other is not folder: ")
    assert main(["convert", "verify", "folder", "nowhere", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_without_transformers_our_own_forward_stands_in(places, monkeypatch):
    monkeypatch.setattr(reference, "version", lambda: None)
    folder = HFWeights(Path("folder"))
    report = verify(folder, folder, **FEW)
    assert report.passed and report.a["logits_from"] == "olmo_hydra"
    assert len(report.notes) == 1 and "not installed" in report.notes[0] and "our own forward" in report.notes[0]


@pytest.mark.parametrize(
    "on_sliding, reads, said",
    [
        (True, True, "applies YaRN to sliding layers too (huggingface/transformers#45945)"),
        (False, False, "does not read RoPE from this config.json"),
    ],
)
def test_a_release_that_computes_another_model_is_said_to(in_memory, tmp_path, monkeypatch, on_sliding, reads, said):
    write_hf(in_memory(yarn_factor=8), tmp_path / "folder", NOTHING)
    monkeypatch.setattr(reference, "version", lambda: "5.0.0")
    monkeypatch.setattr(reference, "yarn_on_sliding_layers", lambda: on_sliding)
    monkeypatch.setattr(reference, "reads_rope", lambda content, model: reads)
    folder = HFWeights(tmp_path / "folder")
    report = verify(folder, folder, **FEW)
    assert report.passed and report.b["logits_from"] == "olmo_hydra"
    assert "transformers 5.0.0 " + said in report.notes[0] and "our own forward" in report.notes[0]


def test_what_the_installed_release_stretches(transformers):
    """Known from trying releases: 5.0 up to 5.12 stretch every layer."""
    release = tuple(map(int, transformers.__version__.split(".")[:2]))
    assert reference.yarn_on_sliding_layers() == ((5, 0) <= release < (5, 13))


def test_what_the_installed_release_reads_of_a_config(transformers, hf_model, in_memory):
    folder = HFWeights(hf_model(0, **YARN)[1])
    assert reference.reads_rope(folder.content, folder.model), "its own"
    assert not reference.reads_rope({**folder.content, "rope_parameters": None}, folder.model)
    for changes in ({}, {"yarn_factor": 8, "rope_theta": 2e6}):
        model = in_memory(**changes).model
        assert reference.reads_rope(to_hf(model, "float32", {}), model), "an exported one"


def test_a_folder_of_transformers_is_compared_with_a_run(hf_model, tmp_path):
    folder = HFWeights(hf_model(1, **YARN)[1])
    write_run(folder, tmp_path / "run", NOTHING, "hf")
    report = verify(folder, open_weights(str(tmp_path / "run")), prompts=2, length=60)
    assert report.passed, report.failures
    assert report.a["logits_from"].startswith("transformers ") and report.b["logits_from"] == "olmo_hydra"
    assert 0 < report.logits["max_abs"] <= 2e-5


def test_rounding_of_large_logits_is_no_other_model(hf_model, tmp_path, capsys):
    """Logits of trained models spread wider than those of initial ones, and their last bits with them."""
    folder = HFWeights(hf_model(3)[1])
    tensors = {name: folder.read(name) for name in folder.shapes}
    tensors["head.weight"] = tensors["head.weight"] * np.float32(32)
    write_hf(InMemory(folder.model, tensors), tmp_path / "hf", NOTHING)
    assert main(["convert", "from-hf", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    few = ["--prompts", "2", "--length", "60"]
    capsys.readouterr()
    assert main(["convert", "verify", str(tmp_path / "hf"), str(tmp_path / "run"), *few, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["logits"]["spread"] > 10
    assert 2e-5 < found["logits"]["max_abs"] < found["limits"]["logits"] == 2e-5 * found["logits"]["spread"]
    assert main(["convert", "verify", str(tmp_path / "hf"), str(tmp_path / "run"), *few, "--logits", "1e-6"]) == 1
    out, err = capsys.readouterr()
    assert "never differs" not in out
    assert "differs by no more than rounding from" in err and "over 1e-06, of the size of rounding" in err
