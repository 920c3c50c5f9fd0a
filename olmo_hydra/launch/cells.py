"""The cells of a sweep: which runs they are."""

import re
from collections.abc import Sequence

from olmo_hydra.config.root import OPERATIONS

Cell = list[str]


def tagged(cells: Sequence[Sequence[str]]) -> list[Cell]:
    """The overrides of each cell, with a tag of its own where an operations key is swept.

    Operations are no part of a run's identity, so cells that differ in them alone would be one run. The tag is made of
    the swept operations (`hardware-cpu_sim`), after `run.tag` if that was given.
    """
    swept = {
        key for key in _keys(cells) if key.partition(".")[0] in OPERATIONS and key != "run.tag" and _varies(key, cells)
    }
    return [_tagged(list(cell), swept) for cell in cells]


def _tagged(cell: Cell, swept: set[str]) -> Cell:
    parts = [override.partition("=") for override in cell]
    operations = [f"{key.rpartition('.')[2]}-{value}" for key, _, value in parts if key in swept]
    if not operations:
        return cell
    given = [value for key, _, value in parts if key == "run.tag"]
    tag = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join([*given, *operations]))[:64]
    return [override for override in cell if not override.startswith("run.tag=")] + [f"run.tag={tag}"]


def _keys(cells: Sequence[Sequence[str]]) -> set[str]:
    return {override.partition("=")[0] for cell in cells for override in cell}


def _varies(key: str, cells: Sequence[Sequence[str]]) -> bool:
    return len({override for cell in cells for override in cell if override.partition("=")[0] == key}) > 1
