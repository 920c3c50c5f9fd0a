"""Text in Debian's packages, and the descriptions of all of them; no root, nothing is installed."""

import fcntl
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.hashes import sha256_of_file
from olmo_hydra.data.files.once import make_once, untouched
from olmo_hydra.data.files.wheels import machine_cache
from olmo_hydra.data.text.sources.archives import package_units, say
from olmo_hydra.data.text.sources.files import grouped
from olmo_hydra.data.text.sources.records import json_lines_pieces
from olmo_hydra.data.text.sources.registry import Origin, Unit, source

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
    if _absent(folder, packages):
        with _apt_alone(folder):
            absent = _absent(folder, packages)
            if absent:
                _download(folder, absent)
    units: list[Unit] = []
    for package in packages:
        archive = _archive(folder, package)
        assert archive is not None, "apt-get download has not left what it said it did"
        origin = Origin("deb", _name(package), _version(archive), sha256_of_file(archive))
        units += package_units(_name(package), archive, cfg, origin, _unpack)
    return units


@source("apt_descriptions")
def apt_descriptions(cfg: DomainConfig) -> list[Unit]:
    """The English descriptions of all packages of this machine's Debian release, a document a package.

    Synopsis and text; the lines of a paragraph stay lines.
    """
    folder = machine_cache() / "debian"
    records = folder / "descriptions.jsonl"
    make_once(records, partial(_write_descriptions, folder))
    origin = Origin("deb", INDEX, "", sha256_of_file(records))
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
    with _apt_alone(folder):
        warnings = _update(folder)
    found = list((folder / "lists").glob(f"*_{INDEX}"))
    if not found:
        raise RequestError(
            f"apt knows no archive with descriptions{warnings}",
            key="source",
            value="apt_descriptions",
            where=str(folder),
            instead="the same on a Debian machine with a network",
        )
    # The release's own is by far the largest; those of its updates repeat parts of it, and change every week.
    index = max(found, key=lambda path: path.stat().st_size)
    lines = (json.dumps(record) + "\n" for record in descriptions(index.read_text("utf-8")))
    records.write_text("".join(lines), "utf-8")


@contextmanager
def _apt_alone(folder: Path) -> Iterator[None]:
    """While no other process of ours uses the lists of this folder: apt itself would not wait for it, but fail."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".apt.lock", "w", opener=untouched) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _absent(folder: Path, packages: Sequence[str]) -> list[str]:
    return [package for package in packages if _archive(folder, package) is None]


def _archive(folder: Path, package: str) -> Path | None:
    """The archive of a package that the cache has: of the version asked for, or the one fetched last."""
    name, _, version = package.partition("=")
    found = folder.glob(f"{name}_{version.replace(':', '%3a') or '*'}_*.deb")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _version(archive: Path) -> str:
    """Of `NAME_VERSION_ARCHITECTURE.deb`, where apt writes the colon of an epoch as `%3a`."""
    return archive.name.split("_")[1].replace("%3a", ":")


def _name(package: str) -> str:
    return package.partition("=")[0]


def _download(folder: Path, packages: Sequence[str]) -> None:
    what = " ".join(packages)
    say(f"downloading {what} once")
    warnings = _update(folder)
    with tempfile.TemporaryDirectory(dir=folder, suffix=".partial") as partial_folder:
        command = ["apt-get", *_options(folder), "-q", "download", *packages]
        done = _run(command, folder, Path(partial_folder))
        if done.returncode:
            raise RequestError(
                f"cannot be fetched{_said(done, 'E:')}{warnings}",
                key="packages",
                value=what,
                where=str(folder),
                instead=f"where there is a network: apt-get update && apt-get download {what}; "
                f"the .deb files belong in {folder}",
            )
        for archive in Path(partial_folder).glob("*.deb"):
            archive.replace(folder / archive.name)


def _update(folder: Path) -> str:
    """Fetches the lists of what there is; gives what apt warns of: without a network it is content with nothing."""
    for sub in ("lists/partial", "archives/partial"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    return _said(_run(["apt-get", *_options(folder), "-q", "update"], folder), "W:")


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


def _unpack(archive: Path, folder: Path) -> None:
    done = _run(["dpkg-deb", "-x", str(archive), str(folder)], archive.parent)
    if done.returncode:
        raise RequestError(
            f"cannot be unpacked{_said(done, 'dpkg-deb: error:')}",
            where=str(archive),
            instead=f"rm {archive}, and the same command again fetches it anew",
        )


def _run(command: list[str], folder: Path, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=at)
    except FileNotFoundError as error:
        raise RequestError(
            f"this machine has no {command[0]}",
            key="source",
            value="deb",
            where=str(folder),
            instead="a Debian machine, or its folder of packages copied to this place",
        ) from error


def _said(done: subprocess.CompletedProcess[str], mark: str) -> str:
    lines = [line.removeprefix(mark).strip() for line in done.stderr.splitlines() if line.startswith(mark)]
    return f" ({lines[0]})" if lines else ""
