"""Files behind a URL: copied once, whole, or read in ranges; errors name the URL."""

import http.server
import importlib.util
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.data.files import remote
from olmo_hydra.data.files.token_file import open_file
from tests.components import require_component

TOKENS = np.arange(5000, dtype="<u2")


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/bucket/a.npy", TOKENS.tobytes())
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def opened(url, copies):
    return open_file(remote.find(url, copies), np.dtype("<u2"), label="web")


def test_copied_once(memory, tmp_path) -> None:
    file = opened("memory://bucket/a.npy", tmp_path)
    assert file.n_tokens == 5000 and file.name == "memory://bucket/a.npy"
    assert not [*tmp_path.rglob("a.npy")]  # its first bytes are enough to tell what it is
    assert file.read(0, 2).tolist() == [0, 1]
    (copy,) = tmp_path.rglob("a.npy")
    memory.pipe_file("/bucket/a.npy", bytes(10_000))
    assert np.array_equal(file.tokens(), TOKENS) and file.read(10, 12).tolist() == [10, 11]
    copy.unlink()
    with pytest.raises(RequestError, match="has changed since it was found"):
        file.tokens()
    assert not opened("memory://bucket/a.npy", tmp_path).tokens().any()


def test_many_threads_fetch_once(memory, tmp_path, monkeypatch) -> None:
    fetched = []
    whole = remote.Remote._fetch_whole
    monkeypatch.setattr(remote.Remote, "_fetch_whole", lambda self, to: (fetched.append(self.url), whole(self, to)))
    found = remote.find("memory://bucket/a.npy", tmp_path)
    with ThreadPoolExecutor(8) as threads:
        copies = set(threads.map(lambda _: found.copy(), range(32)))
    assert len(copies) == len(fetched) == 1


def test_read_in_ranges(memory, tmp_path) -> None:
    file = opened("memory://bucket/a.npy", None)
    assert file.read(4998, 5000).tolist() == [4998, 4999] and np.array_equal(file.tokens(), TOKENS)
    memory.pipe_file("/bucket/a.npy", TOKENS[:100].tobytes())
    with pytest.raises(RequestError, match=r"had 10,000 bytes, and has 200\n.*memory://bucket/a.npy, at token 100"):
        file.read(90, 110)


def test_a_short_copy_is_no_copy(memory, tmp_path, monkeypatch) -> None:
    found = remote.find("memory://bucket/a.npy", tmp_path)
    whole = type(memory).open
    cut = lambda self, path, *how, **also: whole(self, "/bucket/cut", *how, **also)  # noqa: E731
    memory.pipe_file("/bucket/cut", bytes(5))
    monkeypatch.setattr(type(memory), "open", cut)
    with pytest.raises(RequestError, match="gave 5 bytes of 10,000"):
        found.copy()
    assert not [*tmp_path.rglob("*.npy*")]


def test_a_copy_that_cannot_be_written(memory, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot write to the cache"):
        opened("memory://bucket/a.npy", tmp_path / "file").read(0, 1)


def test_globs(memory) -> None:
    memory.pipe_file("/bucket/b/1.npy", b"")
    assert remote.glob("memory://bucket", "**/*.npy", None) == ["a.npy", "b/1.npy"]
    assert remote.glob("memory://bucket/b/", "*.npy", None) == ["1.npy"]
    assert remote.glob("memory://bucket", "*.bin", None) == []


@pytest.mark.parametrize(
    ("url", "problem", "instead"),
    [
        ("memory://bucket/absent.npy", "there is no such file", "a file that is there"),
        ("memory://bucket", "is no file", "a file of tokens"),
        ("s3://bucket/a.npy", "no driver for s3:// is installed", "pip install s3fs"),
        ("nowhere://bucket/a.npy", "there is no nowhere://", "s3://, gs://, https:// or a folder"),
    ],
)
def test_what_cannot_be_read(memory, url, problem, instead) -> None:
    if url.startswith("s3") and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(RequestError) as caught:
        remote.find(url, None)
    assert problem in str(caught.value) and url in str(caught.value) and instead in str(caught.value)


class Down:
    """A server that fails the first times it is asked."""

    def __init__(self, monkeypatch, *methods):
        self.waits, self.failures = [], 0
        monkeypatch.setattr("time.sleep", self.waits.append)
        for method in methods:
            works = getattr(MemoryFileSystem, method)
            monkeypatch.setattr(MemoryFileSystem, method, partial(self._asked, works))

    def _asked(self, works, path, *args, **kwargs):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route")
        return works(fsspec.filesystem("memory"), path, *args, **kwargs)


@pytest.mark.parametrize("copied", [False, True])
def test_what_fails_twice_is_asked_a_third_time(memory, tmp_path, monkeypatch, copied) -> None:
    down = Down(monkeypatch, "info", "cat_file", "open")
    down.failures = 2
    file = opened("memory://bucket/a.npy", tmp_path if copied else None)
    down.failures = 2
    assert file.read(7, 9).tolist() == [7, 8] and down.waits == [1.0, 4.0] * 2


@pytest.mark.parametrize("copied", [False, True])
def test_a_server_that_goes_away_fails_the_run(memory, tmp_path, monkeypatch, copied) -> None:
    """It is no wrong request: the same one may be served later."""
    down = Down(monkeypatch, "info", "cat_file", "open")
    file = opened("memory://bucket/a.npy", tmp_path if copied else None)
    down.failures = 1000
    with pytest.raises(RunFailed, match=r"memory://bucket/a.npy cannot be read in 3 tries \(ConnectionError: no route"):
        file.read(7, 9)
    with pytest.raises(RequestError, match=r"(?s)no route.*memory://bucket/a.npy"):
        opened("memory://bucket/a.npy", tmp_path)


def test_with_all_copies_no_server_is_needed(memory, tmp_path, monkeypatch) -> None:
    down = Down(monkeypatch, "info", "cat_file", "open", "glob")
    assert remote.glob("memory://bucket", "*.npy", tmp_path) == ["a.npy"]
    opened("memory://bucket/a.npy", tmp_path).read(0, 1)
    down.failures = 1000
    assert remote.glob("memory://bucket", "*.npy", tmp_path) == ["a.npy"]
    assert np.array_equal(opened("memory://bucket/a.npy", tmp_path).tokens(), TOKENS)
    with pytest.raises(RequestError, match="no route"):
        remote.glob("memory://bucket", "*.bin", tmp_path)


def test_a_file_that_is_replaced_by_one_of_its_size_is_another(memory, tmp_path) -> None:
    before = opened("memory://bucket/a.npy", tmp_path)
    assert before.read(7, 8).tolist() == [7]
    memory.pipe_file("/bucket/a.npy", TOKENS[::-1].tobytes())
    after = opened("memory://bucket/a.npy", tmp_path)
    assert after.read(7, 8).tolist() == [4992] and before.read(7, 8).tolist() == [7]


@pytest.fixture
def site(tmp_path):
    """A web server on this machine that gives files whole, as Python's own does."""
    require_component("aiohttp", importlib.util.find_spec("aiohttp") is not None, "pip install aiohttp")
    TOKENS.tofile(tmp_path / "a.npy")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_over_http(site, tmp_path) -> None:
    for copies in (None, tmp_path / "copies"):
        file = opened(f"{site}/a.npy", copies)
        assert np.array_equal(file.tokens(), TOKENS) and file.read(7, 9).tolist() == [7, 8]
    with pytest.raises(RequestError, match=f"no such file\n.*{site}/absent.npy"):
        opened(f"{site}/absent.npy", None)
    (tmp_path / "folder").mkdir()
    for folder in ("folder", "folder/"):
        with pytest.raises(RequestError, match=f"page of HTML.*\n.*{site}/folder"):
            opened(f"{site}/{folder}", None)


def test_over_http_where_nobody_answers(site, tmp_path, monkeypatch) -> None:
    """fsspec says of it that there is no such file."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(RequestError, match=r"cannot be read in 3 tries \(ClientConnectorError: Cannot connect"):
        opened(f"http://127.0.0.1:{closed_port()}/a.npy", tmp_path / "copies")


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
