"""Who a run is: the hash of its science half. Operations (hardware, cadence, tracking) never enter it."""

import dataclasses
import hashlib
import json
from enum import Enum
from typing import Any

from olmo_hydra.config.root import SCIENCE, Config
from olmo_hydra.config.store import NO_SCIENCE


def plain(node: Any) -> Any:
    """A config node as JSON-ready containers: enumerations by value, dataclasses as dicts."""
    if dataclasses.is_dataclass(node):
        return {field.name: plain(getattr(node, field.name)) for field in dataclasses.fields(node)}
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [plain(item) for item in node]
    return node.value if isinstance(node, Enum) else node


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """A plain config as `{full key: leaf}`; lists are leaves."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        key: leaf for name, value in node.items() for key, leaf in flat(value, f"{prefix}.{name}".strip(".")).items()
    }


def digest(node: Any) -> str:
    """sha256 (hex) of a plain node, independent of key order."""
    return hashlib.sha256(json.dumps(node, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def identity(config: Config) -> str:
    """8 hex digits over every science value, derived ones included."""
    return digest(science(config))[:8]


def science(config: Config) -> dict[str, Any]:
    """The plain science half, without the fields that change no number: where something lies, what is looked at."""
    return {group: _of_science(getattr(config, group)) for group in SCIENCE}


def _of_science(node: Any) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(node) if not NO_SCIENCE.items() <= field.metadata.items()]
    return {name: plain(getattr(node, name)) for name in fields}


def run_name(config: Config) -> str:
    """Name of the run directory, the W&B run and the Slurm job: `<name>[-<tag>]-<identity>`."""
    tag = f"-{config.run.tag}" if config.run.tag else ""
    return f"{config.run.name}{tag}-{identity(config)}"
