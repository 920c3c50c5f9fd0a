"""Text inside packages of the Python package index."""

import re
import zipfile
from pathlib import Path

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.files import wheels
from olmo_hydra.data.text.sources.archives import package_units, say
from olmo_hydra.data.text.sources.registry import Origin, Unit, source

REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9._!+-]+) --hash=sha256:([0-9a-f]{64})")  # as pip reads it


@source("pypi")
def pypi(cfg: DomainConfig) -> list[Unit]:
    """Files that match `pattern` inside the wheels of `packages`, each a release with the hash of its wheel.

    Wheels are downloaded once for a machine and never installed.
    """
    units: list[Unit] = []
    for package in sorted(set(cfg.packages)):
        match = REQUIREMENT.fullmatch(package)
        if not match:
            raise RequestError(
                "is no release with its hash",
                key="packages",
                value=package,
                instead="'NAME==VERSION --hash=sha256:<64 hex digits of its wheel>'",
            )
        name, version, sha256 = match.groups()
        wheel = wheels.wheel(name, version, sha256, wheels.machine_cache(), say)
        units += package_units(name, wheel, cfg, Origin("pypi", name, version, sha256), _unzip)
    if not units:
        raise RequestError(
            "the source `pypi` needs packages", key="packages", value=[], instead="['NAME==VERSION ...']"
        )
    return units


def _unzip(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
