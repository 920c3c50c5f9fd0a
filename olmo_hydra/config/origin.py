"""Where a value came from: the command line, or the YAML file that set it last."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from olmo_hydra.config.paths import CONF


def origin(key: str, arguments: Sequence[str]) -> str | None:
    """The override or the file that set `key`, looking where Hydra does: the last one to speak comes first.

    Args:
      key: Full config key, `model.head_dim`; or a group's name, for the choice of its option.
      arguments: The command line, without the program.
    """
    for argument in reversed(arguments):
        name = argument.partition("=")[0].lstrip("+~")
        if "=" in argument and (name == key or (key.startswith(f"{name}.") and "{" in argument)):
            return f"command line: {argument}"
    for file in _files(key, arguments):
        if _sets(file, key):
            return _display(file)
    return None


def display(config_path: str) -> str:
    """How we call a config that Hydra names `experiment/nano`."""
    return _display(CONF / f"{config_path}.yaml")


def _display(file: Path) -> str:
    relative = file.relative_to(CONF)
    return f"sweeps/{relative.name}" if relative.parts[0] == "sweep" else f"conf/{relative}"


def _files(key: str, arguments: Sequence[str]) -> Iterator[Path]:
    """The files that may set a key, the strongest first."""
    chosen = _chosen(arguments)
    for group in ("sweep", "experiment"):
        if chosen.get(group) not in (None, "null"):
            yield from _with_parents(CONF / group / f"{chosen[group]}.yaml")
    yield CONF / "config.yaml"
    group = key.partition(".")[0]
    if group in chosen:
        yield from _with_parents(CONF / group / f"{chosen[group]}.yaml")


def _chosen(arguments: Sequence[str]) -> dict[str, str]:
    """The option of each group, as the command line, the experiment and config.yaml choose it."""
    typed = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    typed |= {argument[1:]: "null" for argument in arguments if argument.startswith("~")}
    chosen: dict[str, str] = {}
    for entry in _read(CONF / "config.yaml")["defaults"]:
        chosen.update(entry if isinstance(entry, dict) else {})
    chosen |= {group: option for group, option in typed.items() if group in chosen}
    for group in ("experiment", "sweep"):
        for entry in _read(CONF / group / f"{chosen[group]}.yaml").get("defaults", []):
            for name, option in entry.items() if isinstance(entry, dict) else []:
                chosen.setdefault(name.removeprefix("override /"), option)
                if name.removeprefix("override /") not in typed:
                    chosen[name.removeprefix("override /")] = option
    return chosen


def _with_parents(file: Path) -> Iterator[Path]:
    yield file
    for entry in _read(file).get("defaults", []):
        if isinstance(entry, str) and entry != "_self_" and not entry.startswith("base_"):
            yield from _with_parents(file.with_name(f"{entry}.yaml"))


def _sets(file: Path, key: str) -> bool:
    content: Any = _read(file)
    params = content.get("hydra", {}).get("sweeper", {}).get("params", {})
    if key in params:
        return True
    group, _, rest = key.partition(".")
    overrides = [entry for entry in content.get("defaults", []) if isinstance(entry, dict)]
    if not rest and any(name in entry for entry in overrides for name in (group, f"override /{group}")):
        return True
    parts = key.split(".") if _is_global(file) else rest.split(".")
    for part in parts:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def _is_global(file: Path) -> bool:
    return file.parent == CONF or file.parent.name in ("experiment", "sweep")


def _read(file: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError):
        return {}
