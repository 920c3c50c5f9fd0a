"""Archives of published packages: fetched once for a machine, unpacked, and read as folders of files."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.data.text.sources.files import grouped, matching, read_as, without_links, without_text
from olmo_hydra.data.text.sources.registry import Origin, Unit


def package_units(
    package: str, archive: Path, cfg: DomainConfig, origin: Origin, unpack: Callable[[Path, Path], None]
) -> list[Unit]:
    """The files of a package that `matching` finds, each named by the package and its path in it.

    Args:
      package: As the config names it, without version.
      archive: Of the package; it is unpacked beside it, once.
      cfg: Of the domain.
      origin: What the archive is.
      unpack: Unpacks an archive into a new folder.

    Raises:
      RequestError: No file matches.
    """
    root = archive.with_name(archive.name + ".unpacked")
    if not root.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent, suffix=".partial") as partial:
            unpack(archive, Path(partial) / "root")
            try:
                (Path(partial) / "root").rename(root)
            except OSError:  # another process was faster
                if not root.is_dir():
                    raise
    matched, left_out = matching(root, cfg)
    paths, links = without_links(root, matched)
    items = [(f"{package}/{path.relative_to(root).as_posix()}", path) for path in paths]
    counted = [replace(unit, name=f"{package}: {unit.name}") for unit in without_text([*left_out, *links])]
    return [*counted, *grouped(read_as(cfg, items), origin)]


def say(line: str) -> None:
    """A line for whoever waits for a download; standard output is the command's own."""
    print(f"data: {line}", file=sys.stderr, flush=True)
