"""Who may know whom: the real import graph against the rule of the house."""

import ast
from pathlib import Path

import pytest

import olmo_hydra

PACKAGE = Path(olmo_hydra.__file__).parent
MAY_KNOW = {
    "config": set(),
    "model": {"config"},
    "data": {"config"},
    "optim": {"config"},
    "hardware": {"config"},
    "tracking": {"config"},
    "eval": {"config", "model", "data"},
    "train": {"config", "model", "data", "optim", "hardware", "tracking"},
    "interop": {"config", "model", "train", "tracking"},
    "report": {"config", "tracking"},
    "launch": {"config", "tracking"},
    "cli": {"config", "model", "data", "optim", "hardware", "tracking", "eval", "train", "interop", "report", "launch"},
}
HEAVY = {"jax", "flax", "optax", "orbax", "grain", "wandb"}
WITHOUT_JAX = {"config", "tracking", "report", "launch"}


def imports(file: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_every_room_is_in_the_plan() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == set(MAY_KNOW)


@pytest.mark.parametrize("room", MAY_KNOW)
def test_a_room_knows_only_what_it_may(room: str) -> None:
    for file in files(room):
        known = {name.split(".")[1] for name in imports(file) if name.startswith("olmo_hydra.")}
        assert known <= MAY_KNOW[room] | {room, "__version__"}, file


@pytest.mark.parametrize("room", sorted(WITHOUT_JAX))
def test_rooms_without_jax(room: str) -> None:
    for file in files(room):
        known = {name.split(".")[0] for name in imports(file)}
        assert not known & (HEAVY - {"wandb"}), file


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_small(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400
