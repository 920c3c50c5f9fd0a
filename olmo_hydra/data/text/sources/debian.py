"""Text in Debian's packages, and the descriptions of all of them; no root, nothing is installed."""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.once import make_once
from olmo_hydra.data.text.sources.archives import package_units, say, sha256
from olmo_hydra.data.text.sources.files import grouped
from olmo_hydra.data.text.sources.records import json_lines_pieces
from olmo_hydra.data.text.sources.registry import Origin, Unit, source
from olmo_hydra.data.wheels import machine_cache

INDEX = "Translation-en"
STANZA = re.compile(
    r"Package: (?P<package>\S+)\nDescription-md5: (?P<md5>\S+)\nDescription-en: (?P<text>.*)", re.DOTALL
)


@source("deb")
def deb(cfg: DomainConfig) -> list[Unit]:
    """Files that match `pattern` inside Debian packages: `NAME`, or `NAME=VERSION`, as apt of this machine knows them.

    Debian replaces versions within days; the one that a machine has fetched stays the one that it reads.
    """
    if not cfg.packages:
        raise RequestError("the source `deb` needs packages", key="packages", value=[], instead="[linux-doc-6.1]")
    folder = machine_cache() / "debian"
    packages = sorted(set(cfg.packages))
    absent = [package for package in packages if _archive(folder, package) is None]
    if absent:
        _download(folder, absent)
    units: list[Unit] = []
    for package in packages:
        archive = _archive(folder, package)
        if archive is None:
            raise _failed("apt-get has not delivered it", package, folder)
        version = _run(["dpkg-deb", "-f", str(archive), "Version"], package, folder).strip()
        origin = Origin("deb", _name(package), version, sha256(archive))
        units += package_units(_name(package), archive, cfg, origin, partial(_unpack, package))
    return units


@source("apt_descriptions")
def apt_descriptions(cfg: DomainConfig) -> list[Unit]:
    """The English descriptions of all packages of this machine's Debian release, a document a package.

    Synopsis and text; the lines of a paragraph stay lines.
    """
    folder = machine_cache() / "debian"
    records = folder / "descriptions.jsonl"
    make_once(records, partial(_write_descriptions, folder))
    origin = Origin("deb", INDEX, "", sha256(records))
    return grouped(json_lines_pieces("descriptions", records, records.stat().st_size, "text"), origin)


def descriptions(index: str) -> list[dict[str, str]]:
    """Records of the descriptions in a Translation file, sorted, none twice: `id` (package and digest) and `text`."""
    found = set()
    for stanza in index.split("\n\n"):
        fields = STANZA.fullmatch(stanza.strip("\n"))
        if fields:
            lines = [line.removeprefix(" ") for line in fields["text"].split("\n")]
            text = "\n".join("" if line == "." else line for line in lines)
            found.add((f"{fields['package']} {fields['md5'][:8]}", text))
    return [{"id": key, "text": text} for key, text in sorted(found)]


def _write_descriptions(folder: Path, records: Path) -> None:
    _update(folder, INDEX)
    found = list((folder / "lists").glob(f"*_{INDEX}"))
    if not found:
        raise _failed("apt knows no archive with descriptions", INDEX, folder)
    # The release's own is by far the largest; those of its updates repeat parts of it, and change every week.
    index = max(found, key=lambda path: path.stat().st_size)
    lines = (json.dumps(record) + "\n" for record in descriptions(index.read_text("utf-8")))
    records.write_text("".join(lines), "utf-8")


def _archive(folder: Path, package: str) -> Path | None:
    """The archive of a package that the cache has: of the version asked for, or the one fetched last."""
    name, _, version = package.partition("=")
    found = folder.glob(f"{name}_{version.replace(':', '%3a') or '*'}_*.deb")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _name(package: str) -> str:
    return package.partition("=")[0]


def _download(folder: Path, packages: Sequence[str]) -> None:
    what = " ".join(packages)
    say(f"downloading {what} once")
    _update(folder, what)
    with tempfile.TemporaryDirectory(dir=folder, suffix=".partial") as partial_folder:
        _run(["apt-get", *_options(folder), "-q", "download", *packages], what, folder, Path(partial_folder))
        for archive in Path(partial_folder).glob("*.deb"):
            archive.replace(folder / archive.name)


def _update(folder: Path, what: str) -> None:
    for sub in ("lists/partial", "archives/partial"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    _run(["apt-get", *_options(folder), "-q", "update"], what, folder)


def _options(folder: Path) -> list[str]:
    """apt with lists of its own, so that it needs no root, changes nothing of the machine, and has descriptions."""
    settings = {
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder,
        "Acquire::Languages": "en",
        "Acquire::GzipIndexes": "false",
        "APT::Sandbox::User": "root",  # as root, apt would read as a user that cannot enter a home folder
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _unpack(package: str, archive: Path, folder: Path) -> None:
    _run(["dpkg-deb", "-x", str(archive), str(folder)], package, archive.parent)


def _run(command: list[str], what: str, folder: Path, at: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=at)
    except FileNotFoundError as error:
        raise _failed(f"this machine has no {command[0]}", what, folder) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:]
        raise _failed(f"{' '.join(said) or done.returncode}", what, folder)
    return done.stdout


def _failed(problem: str, what: str, folder: Path) -> RequestError:
    return RequestError(
        f"cannot be fetched ({problem})",
        key="packages",
        value=what,
        where=str(folder),
        instead=f"on a Debian machine with a network: apt-get update && apt-get download {what}; "
        f"the .deb files belong in {folder}",
    )
