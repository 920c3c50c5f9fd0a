"""Text in files of this machine: folders of texts and records, and trees of code."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices
from olmo_hydra.data.files.hashes import sha256_of_json
from olmo_hydra.data.text.sources.formats import ENDINGS, FORMATS
from olmo_hydra.data.text.sources.plain import code_file
from olmo_hydra.data.text.sources.registry import UNIT_BYTES, Document, LeftOut, Origin, Piece, Read, Unit, source
from olmo_hydra.data.text.sources.streams import ending

NOT_WRITTEN_HERE = {"node_modules", "vendor", "vendored", "third_party", "__pycache__", "site-packages", "venv"}
CODE = {
    ".adb", ".asm", ".awk", ".bash", ".c", ".cc", ".cl", ".clj", ".cljs", ".cmake", ".cpp", ".cs", ".css", ".cu",
    ".cuh", ".cxx", ".d", ".dart", ".el", ".erl", ".ex", ".exs", ".f", ".f90", ".fs", ".go", ".gradle", ".groovy", ".h",
    ".hh", ".hpp", ".hs", ".hxx", ".html", ".inl", ".java", ".jl", ".js", ".json", ".jsx", ".kt", ".lean", ".lisp",
    ".lua", ".m", ".md", ".mk", ".ml", ".mli", ".nix", ".pas", ".php", ".pl", ".pm", ".proto", ".ps1", ".py", ".pyi",
    ".pyx", ".r", ".rb", ".rkt", ".rs", ".rst", ".s", ".sas", ".sass", ".scala", ".scm", ".scss", ".sh", ".sol", ".sql",
    ".sv", ".svelte", ".swift", ".tcl", ".tex", ".tf", ".toml", ".ts", ".tsx", ".v", ".vb", ".vhd", ".vhdl", ".vue",
    ".xml", ".yaml", ".yml", ".zig", ".zsh",
}  # fmt: skip
OTHER_ENDING = "another ending"
LINK, NO_FILE = "link", "no regular file"
CODE_NAMES = {"Dockerfile", "Makefile", "CMakeLists.txt", "BUILD", "WORKSPACE", "Rakefile", "Gemfile"}

Item = tuple[str, Path]  # the name of a file inside its domain, and where it lies


@source("files")
def files(cfg: DomainConfig) -> list[Unit]:
    """Texts and records: the file `path`, or files below the folder `path` that match `pattern`."""
    root = place(cfg)
    if root.is_file():
        return grouped(read_as(cfg, [(root.name, root)]))
    paths, left_out = matching(root, cfg)
    return [
        *without_text(left_out),
        *grouped(read_as(cfg, [(_name(root, path), path) for path in paths])),
    ]


@source("code")
def code(cfg: DomainConfig) -> list[Unit]:
    """A tree of code, a document a file, whatever it is: hidden folders, caches and the code of others are left."""
    root = place(cfg)
    paths: list[Path] = []
    left_out: list[LeftOut] = []
    if cfg.pattern is not None:
        paths, left_out = matching(root, cfg)
    else:
        for folder, subfolders, names in os.walk(root):
            closed = [name for name in subfolders if name[0] == "." or name in NOT_WRITTEN_HERE]
            left_out += [LeftOut(_name(root, Path(folder, name)), "folder not entered") for name in closed]
            subfolders[:] = [name for name in subfolders if name not in closed]
            no_files = _no_files([Path(folder, name) for name in (*subfolders, *names)])
            left_out += [LeftOut(_name(root, path), reason) for path, reason in no_files.items()]
            for path in (Path(folder, name) for name in names):
                if path in no_files:
                    continue
                if path.name in CODE_NAMES or path.suffix.lower() in CODE:
                    paths.append(path)
                else:
                    left_out.append(LeftOut(_name(root, path), OTHER_ENDING))
    paths, links = without_links(root, paths)
    items = [(_name(root, path), path) for path in paths]
    pieces = (Piece(name, size, partial(code_file, name, path), path) for name, path, size in sized(items))
    return [*without_text([*left_out, *links]), *grouped(pieces)]


def place(cfg: DomainConfig) -> Path:
    """The file or folder of a domain. Raises RequestError if there is none."""
    if cfg.path is None:
        raise RequestError(
            f"the source `{cfg.source}` needs a file or folder", key="path", value=None, instead="path: /folder/of/text"
        )
    root = Path(cfg.path).expanduser()
    if not root.exists():
        raise RequestError("is no file or folder", key="path", value=cfg.path, instead="the path of your text")
    return root


def matching(root: Path, cfg: DomainConfig) -> tuple[list[Path], list[LeftOut]]:
    """Files below a folder that match the pattern; without one, those whose ending tells how to read them.

    Without a pattern the others are given too, as left out; what is no file is in either case.

    Raises:
      RequestError: There is none, or the pattern is no pattern.
    """
    try:
        found = list(root.glob(cfg.pattern or "**/*"))
    except (ValueError, NotImplementedError) as error:
        raise RequestError(
            f"is no pattern of files below a folder ({error})", key="pattern", value=cfg.pattern, instead="'**/*.txt'"
        ) from error
    paths = [path for path in found if path.is_file()]
    left_out = _no_files(found)
    if cfg.pattern is None:
        left_out |= {path: OTHER_ENDING for path in paths if ending(path.name) not in ENDINGS}
        left_out |= {
            path: "hidden"
            for path in [*paths, *left_out]
            if any(part[0] == "." for part in path.relative_to(root).parts)
        }
        paths = [path for path in paths if path not in left_out]
    if not paths:
        what = "matches no file" if cfg.pattern else f"is null, and no file ends in one of {choices(sorted(ENDINGS))}"
        raise RequestError(f"{what} below {root}", key="pattern", value=cfg.pattern, instead="'**/*.txt'")
    return paths, [LeftOut(_name(root, path), reason) for path, reason in left_out.items()]


def _no_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Those that are neither file nor folder, and why: links to folders are not followed, and may lead nowhere."""
    links = {path: LINK for path in paths if path.is_symlink() and not path.is_file()}
    return links | {path: NO_FILE for path in paths if not (path in links or path.is_file() or path.is_dir())}


def without_links(root: Path, paths: Iterable[Path]) -> tuple[list[Path], list[LeftOut]]:
    """Without links, which lead to other names of the same text, or out of the folder."""
    links = {path for path in paths if path.is_symlink()}
    return [path for path in paths if path not in links], [LeftOut(_name(root, path), LINK) for path in links]


def without_text(left_out: Iterable[LeftOut]) -> list[Unit]:
    """A unit that counts what was left out before anything was read; none if that is nothing."""
    found = sorted(left_out, key=lambda item: (item.name, item.reason))
    names = sha256_of_json([(item.name, item.reason) for item in found])
    return [Unit("left out", partial(list, found), version=names)] if found else []


def read_as(cfg: DomainConfig, items: Iterable[Item]) -> Iterator[Piece]:
    """What files hold, read as `format` says, or as text if that is null and an ending says nothing.

    Raises:
      RequestError: There is no such format, or the index of a file cannot be read.
    """
    if cfg.format is not None and cfg.format not in FORMATS:
        raise RequestError("is no format", key="format", value=cfg.format, instead=choices(sorted(FORMATS)))
    for name, path, size in sized(items):
        kind = cfg.format or ENDINGS.get(ending(name), "text")
        yield from (replace(piece, path=path) for piece in FORMATS[kind](name, path, size, cfg.text_field))


def sized(items: Iterable[Item]) -> Iterator[tuple[str, Path, int]]:
    """Files in the order of their names, with their sizes; 0 for one that is missing, which reading it tells."""
    for name, path in sorted(items):
        yield name, path, path.stat().st_size if path.is_file() else 0


def grouped(pieces: Iterable[Piece], origin: Origin | None = None) -> list[Unit]:
    """Units of consecutive pieces, of up to `UNIT_BYTES` or one piece each."""
    groups: list[list[Piece]] = []
    n_bytes = 0
    for piece in pieces:
        if not groups or n_bytes + piece.size > UNIT_BYTES:
            groups.append([])
            n_bytes = 0
        groups[-1].append(piece)
        n_bytes += piece.size
    return [
        Unit(
            group[0].name,
            partial(_read, [piece.read for piece in group]),
            origin,
            tuple(dict.fromkeys(piece.path for piece in group if piece.path is not None)),
        )
        for group in groups
    ]


def _read(reads: list[Read]) -> Iterator[Document | LeftOut]:
    for read in reads:
        yield from read()


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
