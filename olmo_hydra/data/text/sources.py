"""Where text comes from: one function a source, found by the name that `data.domains.<domain>.source` gives.

To add one, write a function from a `DomainConfig` to `Document`s in the order of their names and register it with
`@source(name)`. What it cannot read it yields as `LeftOut`, so that nothing is missing silently.
"""

import ast
import importlib.metadata
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices, nearest

NOT_INSTALLED = "not installed"
NOT_UTF8 = "not UTF-8"
SEPARATOR = "\n\n\n"  # between passages: a docstring has one blank line inside, so two tell where it ends
BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")  # where a statement holds others, never expressions
TEST_FOLDERS = {"test", "tests", "idle_test"}
NOT_OURS = TEST_FOLDERS | {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "pydoc_data",  # the text of the pydoc_topics source
}


@dataclass(frozen=True)
class Document:
    """A text; `name` is unique inside its domain.

    `passages` are the parts of a text that collects them (docstrings): each may occur in other documents too, and only
    its first occurrence is kept.
    """

    name: str
    text: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Something that gave no document, and why; counted by reason in the manifest."""

    name: str
    reason: str


Source = Callable[[DomainConfig], Iterator[Document | LeftOut]]
SOURCES: dict[str, Source] = {}


def source(name: str) -> Callable[[Source], Source]:
    """Decorator: registers a function as the source of that name."""

    def register(function: Source) -> Source:
        SOURCES[name] = function
        return function

    return register


def documents(domain: str, cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """All documents of a domain. Raises RequestError, with the full key, for a source or a setting that is wrong."""
    if cfg.source not in SOURCES:
        near = nearest(cfg.source, SOURCES)
        raise RequestError(
            "is no source of text",
            key=f"data.domains.{domain}.source",
            value=cfg.source,
            instead=(f"{near}; all: " if near else "") + choices(sorted(SOURCES)),
        )
    try:
        yield from SOURCES[cfg.source](cfg)
    except RequestError as error:
        error.key = f"data.domains.{domain}.{error.key}"
        raise


@source("stdlib")
def stdlib(cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """Modules of the running Python's standard library without its tests, a document a file."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in NOT_OURS]
        # _sysconfigdata_*.py is the log of one build, with its paths.
        paths += [Path(folder, n) for n in names if n.endswith(".py") and not n.startswith("_sysconfigdata")]
    yield from _files(root, paths)


@source("files")
def files(cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """Text files under `path` that match `pattern`, a document a file."""
    if cfg.path is None:
        raise RequestError("the source `files` needs a folder", key="path", value=None, instead="path: /folder/of/text")
    root = Path(cfg.path).expanduser()
    if not root.is_dir():
        raise RequestError("is no folder", key="path", value=cfg.path, instead="the path of a folder with text files")
    try:
        paths = [path for path in root.glob(cfg.pattern) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise RequestError(
            f"is no pattern of files below a folder ({error})", key="pattern", value=cfg.pattern, instead="'**/*.txt'"
        ) from error
    yield from _files(root, paths)


@source("descriptions")
def descriptions(cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """Long descriptions of all installed distributions, a document a distribution.

    Without this package's own, which would make the text depend on the version of the code that trains on it.
    """
    for name, distribution in installed().items():
        if name == "olmo-hydra":
            continue
        metadata = distribution.metadata
        if "Description" in metadata:
            yield Document(name, metadata["Description"])
        else:
            yield LeftOut(name, "no description")


@source("pydoc_topics")
def pydoc_topics(cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """The language reference behind `help("if")`, a document a topic."""
    from pydoc_data.topics import topics  # a large module that only this source needs

    for name, text in sorted(topics.items()):
        yield Document(name, text)


@source("docstrings")
def docstrings(cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """Docstrings of the installed distributions in `packages`, a document a source file. Nothing is imported."""
    if not cfg.packages:
        raise RequestError("the source `docstrings` needs packages", key="packages", value=[], instead="[numpy, jax]")
    present = installed()
    paths: dict[str, Path] = {}
    for package in sorted(set(map(normalized, cfg.packages))):
        if package not in present:
            yield LeftOut(package, NOT_INSTALLED)
            continue
        listed = [file for file in present[package].files or () if file.suffix == ".py" and not _is_test(file.parts)]
        if not listed:
            yield LeftOut(package, "lists no Python files")
        paths |= {file.as_posix(): Path(str(file.locate())) for file in listed}
    for name, path in sorted(paths.items()):
        try:
            passages = tuple(docstrings_of(path.read_bytes()))
        except OSError:
            yield LeftOut(name, "unreadable")
        except (SyntaxError, ValueError, RecursionError):
            yield LeftOut(name, "not Python")
        else:
            yield Document(name, SEPARATOR.join(passages), passages) if passages else LeftOut(name, "no docstring")


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


def _files(root: Path, paths: Iterable[Path]) -> Iterator[Document | LeftOut]:
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        try:
            yield Document(name, path.read_bytes().decode())
        except UnicodeDecodeError:
            yield LeftOut(name, NOT_UTF8)
        except OSError:
            yield LeftOut(name, "unreadable")


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
