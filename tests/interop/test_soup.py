"""Averages of weights, by numpy's."""

import ml_dtypes
import numpy as np
import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.soup import Soup
from olmo_hydra.interop.weights import open_weights
from olmo_hydra.interop.write_hf import write_hf
from olmo_hydra.interop.write_run import write_run

NOTHING = Companions({})


def assert_bits(weights, expected: dict[str, np.ndarray]) -> None:
    assert weights.shapes.keys() == expected.keys()
    for name, tensor in expected.items():
        found = weights.read(name)
        assert found.dtype == tensor.dtype == weights.shapes[name].dtype, name
        assert found.tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("shares", [None, [1, 3, 0.5]])
def test_it_is_the_average(in_memory, shares):
    ingredients = [in_memory() for _ in range(3)]
    expected = {
        name: np.average([it.tensors[name].astype(np.float64) for it in ingredients], axis=0, weights=shares)
        for name in ingredients[0].tensors
    }
    soup = Soup(ingredients, shares)
    for name, tensor in expected.items():
        np.testing.assert_allclose(soup.read(name), tensor, rtol=2**-23, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("copies, shares", [(1, None), (2, None), (3, None), (2, [0.3, 0.7])])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_of_one_training_with_itself_is_that_training(in_memory, copies, shares, dtype):
    weights = in_memory()
    weights.tensors = {name: tensor.astype(dtype) for name, tensor in weights.tensors.items()}
    assert_bits(Soup([weights] * copies, shares), weights.tensors)


def test_the_dtype_is_that_of_the_first_or_the_one_asked_for(in_memory):
    wide, narrow = in_memory(), in_memory()
    narrow.tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in narrow.tensors.items()}
    assert {Soup([narrow, wide]).read(name).dtype for name in wide.tensors} == {np.dtype(ml_dtypes.bfloat16)}
    asked = Soup([narrow, narrow], dtype=DType.float32)
    assert asked.model.param_dtype is DType.float32
    assert_bits(asked, {name: tensor.astype(np.float32) for name, tensor in narrow.tensors.items()})


def test_command_over_a_folder_and_a_run(in_memory, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, run = in_memory(), in_memory()
    write_hf(folder, tmp_path / "folder", NOTHING)
    write_run(run, tmp_path / "runs" / "run", NOTHING, "memory")
    assert main(["convert", "soup", "soup", "folder", "run@0", "--weights", "1", "3"]) == 0
    assert "the average of 2: soup" in capsys.readouterr().out
    expected = {
        name: np.average(np.float64([tensor, run.tensors[name]]), axis=0, weights=[1, 3]).astype(np.float32)
        for name, tensor in folder.tensors.items()
    }
    assert_bits(open_weights("soup"), expected)
    assert main(["convert", "soup", "soup", "folder", "folder"]) == 2, "a run that is there is not written over"
    assert main(["convert", "soup", "alone", "folder"]) == 2
    assert "IN=folder: is one place, and an average takes two or more" in capsys.readouterr().err


def test_other_models_are_refused_by_what_differs(in_memory):
    weights = in_memory()
    for changes, said in (
        ({"d_ff": 48}, "d_ff is 40 and 48"),
        ({"window": 6}, "window is 5 and 6"),
        ({"yarn_factor": 8}, "yarn_factor is null and 8"),
        ({"window_pattern": ["full", "full"]}, "layer 0 is sliding and full"),
        ({"vocab_multiple": 8}, r"embedding.weight has shape \(50, 24\) and \(56, 24\)"),
    ):
        with pytest.raises(RequestError, match=said):
            Soup([weights, weights, in_memory(place="other", **changes)])


@pytest.mark.parametrize("shares", [[1], [1, 2, 3], [1, -1], [0, 0], [1, float("nan")], [float("inf"), 1]])
def test_shares_that_make_no_average_are_refused(in_memory, shares):
    weights = in_memory()
    with pytest.raises(RequestError, match="weights"):
        Soup([weights, weights], shares)


def test_large_shares_are_divided_by_their_sum(in_memory):
    assert Soup([in_memory()] * 2, [1e308, 1e308]).shares == [0.5, 0.5]
    assert Soup([in_memory()] * 2, [5e-324, 5e-324]).shares == [0.5, 0.5]


def test_averages_too_large_for_a_dtype_leave_nothing(in_memory, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    large, half = in_memory(), in_memory()
    large.tensors["blocks.1.mlp.up.weight"][1, 2, 3] = 3.4e38  # bfloat16 ends at 3.39e38
    half.tensors = {name: tensor.astype(np.float16) for name, tensor in half.tensors.items()}
    for name, weights in (("large", large), ("half", half)):
        write_run(weights, tmp_path / name, NOTHING, "memory")
    for ingredients, dtype in ((["large", "large", "--dtype", "bfloat16"], "bfloat16"), (["half", "large"], "float16")):
        assert main(["convert", "soup", "soup", *ingredients]) == 2
        assert f"blocks.1.mlp.up.weight has averages that are too large for {dtype}" in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "large"]
    half.tensors["final_norm.weight"][3] = np.inf
    assert np.isinf(Soup([half, half]).read("final_norm.weight")[3]), "what is not finite before may stay so"
