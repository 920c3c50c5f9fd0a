"""Token files: raw and with NumPy's header, told apart by their bytes; what is wrong is named with file and offset."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.token_file import npy, open_file, token_type, tokens_of

UINT16 = np.dtype("<u2")


def opened(path, dtype="<u2", **more):
    return open_file(path, np.dtype(dtype), label="web", **more)


def refused(path, *fragments, dtype="<u2", **more):
    with pytest.raises(RequestError) as caught:
        opened(path, dtype, **more)
    for fragment in (str(more.get("mask", path)), *fragments):
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (100_278, "uint32"), (2**32 + 1, "uint64")],
)
def test_the_type_of_a_vocabulary_is_olmo_cores(vocab_size, name) -> None:
    assert token_type(vocab_size) == np.dtype(name)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["uint8", "<u2", "<u4", "<u8", ">u4"]),
    version=st.sampled_from([None, (1, 0), (2, 0), (3, 0)]),
    n=st.integers(0, 50),
    data=st.data(),
)
def test_what_was_written_is_read(tmp_path_factory, name, version, n, data) -> None:
    tokens = data.draw(st.lists(st.integers(0, 255), min_size=n, max_size=n))
    path = tmp_path_factory.mktemp("files") / "tokens.npy"
    array = np.array(tokens, name if version else np.dtype(name).newbyteorder("<"))
    with path.open("wb") as out:
        if version:
            np.lib.format.write_array(out, array, version)
        else:
            out.write(array.tobytes())
    file = opened(path, "<u2" if version else array.dtype.str)  # a header says its own type
    assert (file.n_tokens, file.n_bytes, file.dtype.itemsize) == (n, path.stat().st_size, array.itemsize)
    assert file.tokens().tolist() == tokens
    start = data.draw(st.integers(0, n))
    again = pickle.loads(pickle.dumps(file))
    assert again == file and again.read(start, n).tolist() == tokens[start:]


def test_no_multiple_of_the_item(tmp_path) -> None:
    (tmp_path / "torn.npy").write_bytes(bytes(4097))
    refused(tmp_path / "torn.npy", "4,097 bytes are no whole number of 2-byte tokens", "at byte 4096")


def test_absent_files_and_folders(tmp_path) -> None:
    refused(tmp_path / "absent.npy", "No such file")
    refused(tmp_path, "no regular file")
    refused(tmp_path / ("x" * 300), "File name too long")


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros(4, np.int32), "an array of int32"),
        (np.zeros(4, np.float32), "an array of float32"),
        (np.zeros((2, 2), np.uint16), r"uint16 with shape (2, 2)"),
        (np.asfortranarray(np.zeros((2, 3), np.uint16)), "shape (2, 3)"),
        (np.zeros((), np.uint16), "shape ()"),
        (np.array([None, 1], object), "an array of object"),
        (np.zeros(4, [("a", "u2")]), "an array of [('a', '<u2')]"),
    ],
)
def test_arrays_that_are_no_tokens(tmp_path, array, what) -> None:
    np.save(tmp_path / "array.npy", array)
    refused(tmp_path / "array.npy", what)


def test_damaged_npy(tmp_path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.arange(100, dtype=UINT16))
    whole = path.read_bytes()
    for content, what in {
        whole[:-1]: "327 bytes are not the 328 of its NumPy header",
        whole + bytes(2): "330 bytes are not the 328",
        whole[:60]: "it is cut off",
        whole[:6]: "there is no version 0",
        whole[:6] + b"\x09" + whole[7:]: "there is no version 9",
        whole.replace(b"'descr'", b"'nothi'"): "'descr'",
        whole.replace(b"{", b"("): "cannot be read",
    }.items():
        path.write_bytes(content)
        refused(path, what)


@given(st.binary(max_size=200))
def test_no_header_raises_anything_else(rest) -> None:
    for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00", b""):
        try:
            npy.parse(npy.MAGIC + version + len(rest).to_bytes(2, "little") + rest, "file")
        except RequestError as error:
            assert error.where is not None and "file" in error.where


def test_a_token_past_the_vocabulary(tmp_path) -> None:
    np.array([1, 2, 3, 300, 4, 301], UINT16).tofile(tmp_path / "a.npy")
    files = [opened(tmp_path / "a.npy")]
    assert tokens_of(files, 0, 0, 3, 300).tolist() == [1, 2, 3]
    assert tokens_of(files, 0, 6, 0, 300).tolist() == []
    with pytest.raises(RequestError) as caught:
        tokens_of(files, 0, 1, 5, 300)
    assert "token 300 is past the 300 ids" in str(caught.value) and "a.npy, at token 3" in str(caught.value)


def test_masks(tmp_path) -> None:
    np.arange(5, dtype=UINT16).tofile(tmp_path / "a.npy")
    targets = np.array([1, 0, 1, 1, 0], bool)
    targets.tofile(tmp_path / "mask.npy")
    np.save(tmp_path / "header.npy", targets)
    np.save(tmp_path / "uint8.npy", targets.astype(np.uint8))
    np.ones(4, bool).tofile(tmp_path / "short.npy")
    assert opened(tmp_path / "a.npy").mask is None
    for name in ("mask.npy", "header.npy"):
        file = opened(tmp_path / "a.npy", mask=tmp_path / name)
        assert file.mask.tokens().tolist() == targets.tolist() and file.mask.read(1, 3).tolist() == [False, True]
    refused(tmp_path / "a.npy", "4 entries for 5 tokens", mask=tmp_path / "short.npy")
    refused(tmp_path / "a.npy", "No such file", mask=tmp_path / "absent.npy")
    refused(tmp_path / "a.npy", "an array of uint8", "bools", mask=tmp_path / "uint8.npy")


def test_files_that_change_after_they_were_opened(tmp_path) -> None:
    path = tmp_path / "a.npy"
    np.arange(1000, dtype=UINT16).tofile(path)
    file = opened(path)
    with path.open("r+b") as shrinks:
        shrinks.truncate(1001)
    assert file.read(0, 500).tolist() == list(range(500))
    for ask in (lambda: file.read(490, 510), file.tokens, lambda: tokens_of([file], 0, 0, 1000, 1000)):
        with pytest.raises(RequestError, match=r"had 2,000 bytes, and has 1,001\n.*a\.npy, at token 500"):
            ask()
    path.unlink()
    for ask in (lambda: file.read(0, 1), file.tokens):
        with pytest.raises(RequestError, match=r"No such file or directory\)\n.*a\.npy"):
            ask()
