"""Where a run's numbers come from: code, packages, machine, devices and data, for each start of the process."""

import hashlib
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import olmo_hydra
from olmo_hydra.config.root import OPERATIONS, Config
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.history import starts_of
from olmo_hydra.tracking.run_dir import RunDir

# Distributions whose version can change a number, or how it was computed and stored.
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers",
            "hydra-core", "omegaconf", "wandb")  # fmt: skip
ENVIRONMENT = ("JAX_", "XLA_", "LIBTPU_", "TPU_")
MAX_DIFF_BYTES = 200_000


def collect(
    cfg: Config, overrides: list[str], step: int, data: dict[str, Any], devices: dict[str, Any]
) -> dict[str, Any]:
    """One start of the process.

    Args:
      cfg: The composed config. Its operational groups are kept, as they may differ from start to start.
      overrides: What was typed.
      step: Updates that were done before it.
      data: Name, hashes and summary of what it reads, by the data room.
      devices: The devices the run computes on, by the hardware room.
    """
    operations = {name: OmegaConf.structured(getattr(cfg, name)) for name in OPERATIONS}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join(sys.argv),
        "overrides": list(overrides),
        "folder": os.getcwd(),
        "script": sys.argv[0],
        "git": git_state(Path(olmo_hydra.__file__).parent),
        "olmo_hydra": olmo_hydra.__version__,
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "python": platform.python_version(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(ENVIRONMENT)},
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpus": os.cpu_count(),
        "parameters": cfg.model.num_params,
        "devices": devices,
        "data": data,
        "operations": {
            name: OmegaConf.to_container(node, resolve=True, enum_to_str=True) for name, node in operations.items()
        },
    }


def append_start(run_dir: RunDir, start: dict[str, Any]) -> None:
    """Adds one start to `provenance.json`: `{"starts": [oldest, ..., newest]}`.

    Raises:
      RequestError: The file is damaged, or cannot be written.
    """
    replace(run_dir.provenance, json.dumps({"starts": [*starts_of(run_dir), start]}, indent=1).encode())


def git_state(folder: Path) -> dict[str, Any] | None:
    """Top folder and commit of the checkout that tracks `folder`, and what differs; None when no checkout does.

    The diff is of tracked files; its SHA-256 is over the whole text, which is kept up to `MAX_DIFF_BYTES`. Files that
    git does not know are named.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # not a checkout, or an installed package inside somebody else's
    commit = _git(folder, "rev-parse", "HEAD")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    root = Path(top.decode().strip())
    diff = _git(root, "diff", "HEAD") or b""
    untracked = _git(root, "ls-files", "--others", "--exclude-standard") or b""
    return {
        "top": str(root),
        "commit": commit.decode().strip(),
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
        "diff": diff[:MAX_DIFF_BYTES].decode(errors="replace"),
        "diff_bytes": len(diff),
        "untracked": untracked.decode(errors="replace").splitlines()[:100],
    }


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Output of a git command, or None when git is absent, refuses or hangs."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
