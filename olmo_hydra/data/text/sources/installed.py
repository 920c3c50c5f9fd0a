"""Text that a Python installation carries: the standard library, its documentation, descriptions and docstrings."""

import ast
import importlib.metadata
import inspect
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.sources.files import grouped, sized, without_text
from olmo_hydra.data.text.sources.plain import text_file
from olmo_hydra.data.text.sources.registry import (
    NOT_INSTALLED,
    SEPARATOR,
    UNREADABLE,
    Document,
    LeftOut,
    Piece,
    Unit,
    source,
)

BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")  # where a statement holds others, never expressions
TEST_FOLDERS = {"test", "tests", "idle_test"}
NOT_OURS = TEST_FOLDERS | {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "pydoc_data",  # the text of the pydoc_topics source
}


@source("stdlib")
def stdlib(cfg: DomainConfig) -> list[Unit]:
    """Modules of the running Python's standard library without its tests, a document a file."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in NOT_OURS]
        # _sysconfigdata_*.py is the log of one build, with its paths.
        paths += [Path(folder, n) for n in names if n.endswith(".py") and not n.startswith("_sysconfigdata")]
    items = [(path.relative_to(root).as_posix(), path) for path in paths]
    return grouped(Piece(name, size, partial(text_file, name, path), path) for name, path, size in sized(items))


@source("descriptions")
def descriptions(cfg: DomainConfig) -> list[Unit]:
    """Long descriptions of all installed distributions, a document a distribution.

    Without this package's own, which would make the text depend on the version of the code that trains on it.
    """
    versions = {name: distribution.version for name, distribution in installed().items()}
    return [Unit("descriptions", _descriptions, version=json.dumps(versions))]


@source("pydoc_topics")
def pydoc_topics(cfg: DomainConfig) -> list[Unit]:
    """The language reference behind `help("if")`, a document a topic."""
    return [Unit("topics", _topics, version=platform.python_version())]


@source("docstrings")
def docstrings(cfg: DomainConfig) -> list[Unit]:
    """Docstrings of the installed distributions in `packages`, a document a source file. Nothing is imported."""
    if not cfg.packages:
        raise RequestError("the source `docstrings` needs packages", key="packages", value=[], instead="[numpy, jax]")
    present = installed()
    paths: dict[str, Path] = {}
    absent: list[LeftOut] = []
    for package in sorted(set(map(normalized, cfg.packages))):
        if package not in present:
            absent.append(LeftOut(package, NOT_INSTALLED))
            continue
        listed = [file for file in present[package].files or () if file.suffix == ".py" and not _is_test(file.parts)]
        if not listed:
            absent.append(LeftOut(package, "lists no Python files"))
        paths |= {file.as_posix(): Path(str(file.locate())) for file in listed}
    files = sized(paths.items())
    pieces = [Piece(name, size, partial(_docstrings_file, name, path), path) for name, path, size in files]
    return [*without_text(absent), *grouped(pieces)]


def docstrings_of(code: bytes) -> list[str]:
    """Docstrings of a module, its classes and functions, in order, and the texts NumPy attaches by `add_newdoc`.

    Raises:
      SyntaxError, ValueError, RecursionError: `code` is not a Python file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the code of others: invalid escapes in its strings
        return [text for text in _docstrings(ast.parse(code)) if text.strip()]


def installed() -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions by normalized name, sorted. Of two with one name, the one that would be imported."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:  # an interrupted uninstall leaves a folder without metadata
            found.setdefault(normalized(distribution.name), distribution)
    return dict(sorted(found.items()))


def normalized(name: str) -> str:
    """A distribution's name as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _descriptions() -> Iterator[Document | LeftOut]:
    for name, distribution in installed().items():
        if name == "olmo-hydra":
            continue
        metadata = distribution.metadata
        if "Description" in metadata:
            yield Document(name, metadata["Description"])
        else:
            yield LeftOut(name, "no description")


def _topics() -> Iterator[Document | LeftOut]:
    from pydoc_data.topics import topics  # a large module that only this source needs

    for name, text in sorted(topics.items()):
        yield Document(name, text)


def _docstrings_file(name: str, path: Path) -> Iterator[Document | LeftOut]:
    try:
        passages = tuple(docstrings_of(path.read_bytes()))
    except OSError:
        yield LeftOut(name, UNREADABLE)
    except (SyntaxError, ValueError, RecursionError):
        yield LeftOut(name, "not Python")
    else:
        yield Document(name, SEPARATOR.join(passages), passages) if passages else LeftOut(name, "no docstring")


def _is_test(parts: tuple[str, ...]) -> bool:
    return bool(TEST_FOLDERS & set(parts)) or parts[-1].startswith("test_") or parts[-1].endswith("_test.py")


def _docstrings(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield ast.get_docstring(node) or ""
        case ast.Expr(ast.Call(ast.Name(id=name) | ast.Attribute(attr=name), args=[*_, last])):
            if name.startswith("add_newdoc"):
                yield from _newdocs(last)
    for block in BLOCKS:
        for statement in getattr(node, block, ()):
            yield from _docstrings(statement)


def _newdocs(node: ast.AST) -> Iterator[str]:
    # The last argument of add_newdoc: a text, a pair of attribute and text, or a list of such pairs.
    match node:
        case ast.Constant(str(text)):
            # Python does not show a signature that stands before this mark (`__text_signature__`).
            yield inspect.cleandoc(text).split(")\n--\n\n", 1)[-1]
        case ast.Tuple([*_, text]):
            yield from _newdocs(text)
        case ast.List(pairs):
            for pair in pairs:
                yield from _newdocs(pair)
