"""Files as the format's own package reads and writes them, and damaged ones."""

import json
import os
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import safetensors
from tests.components import require_component

NUMBERS = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, 65536.0]], np.float32)
HEADER = (
    b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
    b'"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}}'
)
BRAIN = np.array([1.0, -1.0], ml_dtypes.bfloat16)


def file_of(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


WHOLE = file_of(HEADER + b" " * (-len(HEADER) % 8), NUMBERS.tobytes() + b"\x80\x3f\x80\xbf")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.safetensors"


def test_a_file_is_its_bytes(file) -> None:
    entries = safetensors.create(file, {"a": (NUMBERS.dtype, (2, 3)), "b": (BRAIN.dtype, (2,))})
    assert safetensors.write(entries["b"], BRAIN) == 0
    assert safetensors.write(entries["a"], NUMBERS.T.copy().T) == 0  # other strides
    assert file.read_bytes() == WHOLE
    found = safetensors.header(file)
    assert found == entries
    assert np.array_equal(safetensors.read(found["a"]), NUMBERS)
    assert np.array_equal(safetensors.read(found["b"]), BRAIN)


def test_the_package_reads_it_and_is_read(file) -> None:
    require_component("transformers", find_spec("safetensors") is not None, 'pip install -e ".[hf]"')
    from safetensors.numpy import load_file, save_file

    rng = np.random.default_rng()
    tensors = {f"t{i}": rng.normal(size=rng.integers(1, 6, i % 3 + 1)).astype(np.float32) for i in range(9)}
    tensors["half"] = rng.normal(size=(3, 5)).astype(np.float16)
    save_file(tensors, file)
    for name, entry in safetensors.header(file).items():
        assert np.array_equal(safetensors.read(entry), tensors[name])
    again = file.with_name("again.safetensors")
    for name, entry in safetensors.create(again, {name: (t.dtype, t.shape) for name, t in tensors.items()}).items():
        safetensors.write(entry, tensors[name])
    found = load_file(again)
    assert all(np.array_equal(found[name], tensor) for name, tensor in tensors.items())


def test_long_tensors_go_block_by_block(file, monkeypatch) -> None:
    monkeypatch.setattr(safetensors, "BLOCK", 64)
    tensor = np.random.default_rng().normal(size=(7, 31)).astype(np.float32)
    assert len(list(safetensors.blocks(tensor))) == 7
    (entry,) = safetensors.create(file, {"t": (tensor.dtype, (31, 7))}).values()
    safetensors.write(entry, tensor.T)
    assert np.array_equal(safetensors.read(entry), tensor.T)


def test_numbers_too_large_are_seen(file) -> None:
    (entry,) = safetensors.create(file, {"t": (np.dtype(np.float16), (2, 3))}).values()
    with pytest.raises(OverflowError):
        safetensors.write(entry, NUMBERS)
    assert safetensors.write(entry, np.full((2, 3), np.nan, np.float32)) == 0


def test_numbers_too_small_are_counted(file) -> None:
    """float16 has normal numbers from 2^-14 and others, with fewer digits, from 2^-24."""
    (entry,) = safetensors.create(file, {"t": (np.dtype(np.float16), (2, 3))}).values()
    numbers = np.array([[0, 2.0**-14, 2.0**-24], [1e-9, -1.23e-6, 0.1]], np.float32)
    assert safetensors.write(entry, numbers) == 2
    assert safetensors.write(entry, numbers.astype(np.float16)) == 0
    (entry,) = safetensors.create(file, {"t": (np.dtype(ml_dtypes.bfloat16), (2, 3))}).values()
    assert safetensors.write(entry, numbers) == 0


def changed(**tensor) -> bytes:
    content = json.loads(HEADER)
    content["a"] |= tensor
    return file_of(json.dumps(content).encode(), NUMBERS.tobytes() + b"\x80\x3f\x80\xbf")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "header is cut off"),
        (WHOLE[:40], "header is cut off"),
        (WHOLE[:-1], "b is cut off"),
        (WHOLE[:-9], "a is cut off"),
        (WHOLE + b"\0", "1 bytes after the last tensor"),
        (file_of(b"[1]", b""), "not that of a safetensors file"),
        (file_of(b"{{", b""), "not that of a safetensors file"),
        (file_of(b'{"a": 3}', b""), "not that of a safetensors file: a has 3"),
        (file_of(b'{"a": {"dtype": "F32"}}', b""), "not that of a safetensors file: a has"),
        (changed(shape=[2, 4]), "a has 24 bytes for F32 [2, 4]"),
        (changed(data_offsets=[4, 28]), "the bytes of a begin at"),
        (changed(data_offsets=[0, 20]), "a has 20 bytes for F32"),
        (changed(data_offsets=[-4, 20]), "not that of a safetensors file"),
        (changed(shape=[-2, -3]), "not that of a safetensors file"),
        (changed(shape=[2, float("inf")]), "not that of a safetensors file: a has"),
        (changed(shape=[2, 3.5]), "not that of a safetensors file"),
        (changed(shape=[2, 10**400]), "a has 24 bytes"),
        (changed(data_offsets=[0, float("inf")]), "not that of a safetensors file"),
        (file_of(WHOLE[8 : 8 + len(HEADER)].replace(b"24]", b"1e400]", 1), b""), "not that of a safetensors file"),
        (file_of(b"[" * 200_000 + b"]" * 200_000, b""), "not that of a safetensors file"),
    ],
)
def test_damaged_files_are_named(file, content, named) -> None:
    file.write_bytes(content)
    with pytest.raises(RequestError) as refused:
        safetensors.header(file)
    assert named in refused.value.problem
    assert refused.value.where == str(file)


def test_what_is_no_regular_file_is_not_waited_for(file) -> None:
    os.mkfifo(file)
    with pytest.raises(RequestError, match="is no regular file"):
        safetensors.header(file)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(RequestError, match="is no regular file"):
        safetensors.header(file)
