import importlib
import inspect
import json
import pickle
import pydoc_data.topics
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources import SOURCES, Document, LeftOut, units
from olmo_hydra.data.text.sources.installed import docstrings_of
from olmo_hydra.data.text.sources.registry import SEPARATOR
from tests.data.text.reading import documents


def texts(cfg):
    return {item.name: item.text for item in documents("domain", cfg) if isinstance(item, Document)}


def left_out(cfg):
    return {item.name: item.reason for item in documents("domain", cfg) if isinstance(item, LeftOut)}


@pytest.mark.parametrize(
    "cfg",
    [
        DomainConfig(source="stdlib"),
        DomainConfig(source="docstrings", packages=["optax", "hydra-core"]),
        DomainConfig(source="descriptions"),
        DomainConfig(source="pydoc_topics"),
        DomainConfig(source="files", path=str(Path(json.__file__).parent), pattern="*.py"),
    ],
    ids=lambda cfg: cfg.source,
)
def test_documents_are_sorted_by_unique_names_and_the_same_each_time(cfg):
    found = [item for item in documents("domain", cfg) if isinstance(item, Document)]
    names = [document.name for document in found]
    assert len(names) > 3 and names == sorted(set(names))
    # A unit reads the same in another process.
    sent = pickle.loads(pickle.dumps(units("domain", cfg)))
    assert found == [item for unit in sent for item in unit.read() if isinstance(item, Document)]
    assert len({unit.name for unit in sent}) == len(sent)


def test_stdlib_is_the_library_without_tests():
    found = texts(DomainConfig(source="stdlib"))
    assert found["json/decoder.py"] == Path(sys.modules["json.decoder"].__file__).read_text("utf-8")
    parts = {part for name in found for part in name.split("/")}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "pydoc_data"}


def test_topics_are_those_of_help():
    assert texts(DomainConfig(source="pydoc_topics")) == pydoc_data.topics.topics


def test_descriptions_are_the_readmes():
    found = texts(DomainConfig(source="descriptions"))
    # A known sentence, beyond the headers of METADATA.
    assert "composable transformations" in found["jax"].lower() and "Metadata-Version" not in found["jax"]
    assert "olmo-hydra" not in found


def test_docstrings_are_those_that_python_sees():
    found = documents("domain", DomainConfig(source="docstrings", packages=["optax"]))
    document = next(item for item in found if item.name == "optax/_src/base.py")
    for thing in (optax._src.base, optax.GradientTransformation, optax.identity):
        assert inspect.getdoc(thing) in document.passages
    assert document.text == SEPARATOR.join(document.passages)


def test_docstrings_wherever_they_stand():
    code = b'''"""Module."""
import sys
if sys.platform:
    class A:
        """Class A.

            Indented.
        Not.
        """
        x = "no docstring"
        async def f(self):
            "Method f."
            def inner():
                """Inner."""
try:
    pass
except ImportError:
    def g(): """In a handler."""
match 1:
    case 1:
        def h(): """In a case."""
def nothing(): return """not one"""
add_newdoc("numpy", "ndarray", """An array.""")
np.add_newdoc("numpy", "ndarray", ("T", """Transposed."""))
add_newdoc("numpy", "ndarray", [("a", """One."""), ("b", """Two.""")])
other("numpy", """not one either""")
"""nor this"""
'''
    assert docstrings_of(code) == [
        "Module.",
        "Class A.\n\n    Indented.\nNot.",
        "Method f.",
        "Inner.",
        "In a handler.",
        "In a case.",
        "An array.",
        "Transposed.",
        "One.",
        "Two.",
    ]


def test_newdocs_are_those_that_numpy_shows():
    found = documents("domain", DomainConfig(source="docstrings", packages=["numpy"]))
    document = next(item for item in found if item.name == "numpy/_core/_add_newdocs.py")
    for thing in (np.ndarray, np.ndarray.flat, np.dtype.itemsize):
        assert inspect.getdoc(thing) in document.passages


def test_an_absent_package_is_named():
    cfg = DomainConfig(source="docstrings", packages=["Hydra_Core", "no-such-distribution"])
    assert [name for name, reason in left_out(cfg).items() if reason == "not installed"] == ["no-such-distribution"]
    assert "hydra/main.py" in texts(cfg)


def test_files_that_are_no_text_are_counted(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "crlf.txt").write_bytes("\ufeffone\r\ntwo".encode())
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "other.md").write_text("other")
    cfg = DomainConfig(source="files", path=str(tmp_path), pattern="**/*.txt")
    assert texts(cfg) == {"deep/crlf.txt": "\ufeffone\r\ntwo"}
    assert left_out(cfg) == {"latin.txt": "not UTF-8"}


def test_code_that_is_no_python_is_counted(tmp_path, monkeypatch):
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    contents = {"odd/a.py": b'"""A."""', "odd/b.py": b"print 1", "odd/c.py": b"\0", "odd/d.py": b"x = 1"}
    contents |= {"odd/tests/e.py": b'"""E."""', "odd/test_f.py": b'"""F."""'}
    (tmp_path / "odd" / "tests").mkdir(parents=True)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in contents))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    cfg = DomainConfig(source="docstrings", packages=["odd"])
    assert texts(cfg) == {"odd/a.py": "A."}
    assert left_out(cfg) == {"odd/b.py": "not Python", "odd/c.py": "not Python", "odd/d.py": "no docstring"}


@pytest.mark.parametrize(
    ("cfg", "key", "instead"),
    [
        (DomainConfig(source="stdlb"), "source", "stdlib; all: " + ", ".join(sorted(SOURCES))),
        (DomainConfig(source="files"), "path", "path: "),
        (DomainConfig(source="files", path="/no/such/folder"), "path", "path of your text"),
        (DomainConfig(source="files", path=str(Path(__file__).parent), pattern="/etc/*"), "pattern", "**/*.txt"),
        (DomainConfig(source="files", path=str(Path(__file__).parent), pattern="*.none"), "pattern", "**/*.txt"),
        (DomainConfig(source="files", path=__file__, format="docx"), "format", "jsonl"),
        (DomainConfig(source="docstrings"), "packages", "[numpy, jax]"),
    ],
)
def test_wrong_requests(cfg, key, instead):
    with pytest.raises(RequestError) as caught:
        list(documents("mine", cfg))
    assert caught.value.key == f"data.domains.mine.{key}"
    assert instead in caught.value.instead
