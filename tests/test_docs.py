"""What the documents say is true: links lead somewhere, commands compose, errors read as shown, no machine is named."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from olmo_hydra.cli.main import _parser as olmo_hydra_parser
from olmo_hydra.cli.prepare import ANY_MODEL
from olmo_hydra.config.arguments import refuse_silent_mistakes
from olmo_hydra.config.compose import compose
from olmo_hydra.config.paths import CONF

ROOT = CONF.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {".py", ".md", ".yaml", ".toml", ".txt", ".css", ".html", ".js", ""}
FOLDERS = [".ci", "benchmarks", "conf", "docs", "hydra_plugins", "olmo_hydra", "sweeps", "tests"]
NOT_PORTABLE = re.compile(
    r"pypi[.]|pythonhoste[d]|(extra-)?index-[u]rl|find-[l]inks|/[r]oot/|/[w]ork/|/[o]pt/|/[U]sers/|/[t]mp/|/[h]ome/(?!me/)"
)


def ident(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def code(language: str) -> list[str]:
    """The code blocks of a language in all pages."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES for block in fence.findall(page.read_text())]


def commands(program: str) -> list[str]:
    """The command lines of a program in the pages' bash blocks, without the program."""
    steps = [step.strip() for block in code("bash") for line in block.splitlines() for step in line.split("&&")]
    return [step.removeprefix(program).strip() for step in steps if step.startswith(program)]


def cells(overrides: list[str]) -> list[list[str]]:
    """The overrides of each run that a multirun starts."""
    parsed = [OverridesParser.create().parse_override(override) for override in overrides]
    axes = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [typed]
        for typed, override in zip(overrides, parsed, strict=True)
    ]
    return [list(cell) for cell in itertools.product(*axes)]


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_named_files_exist(page: Path) -> None:
    """A path in backticks is a file of the repository, of the package or beside the page, unless it has a blank.

    Names of metrics look like paths in the room of data, but for the ending.
    """
    heads = {path.name for folder in (ROOT, ROOT / "olmo_hydra") for path in folder.iterdir() if path.is_dir()}
    for name in re.findall(r"`([\w.-]+/[\w./-]*)`", page.read_text()):
        is_metric = re.fullmatch(r"data/(\w+/?|\.\.\.)", name) and not (ROOT / "olmo_hydra" / name).exists()
        if (name.partition("/")[0] in heads and not is_metric) or name.endswith((".py", ".yaml", ".md")):
            assert any((folder / name).exists() for folder in (ROOT, ROOT / "olmo_hydra", page.parent)), name


@pytest.mark.parametrize("command", commands("python train.py"))
def test_training_commands_compose(command: str) -> None:
    parsed = get_args_parser().parse_args(shlex.split(command))
    refuse_silent_mistakes(parsed.overrides)
    runs = cells(parsed.overrides)
    assert parsed.multirun or len(runs) == 1
    for overrides in runs:
        compose(overrides)


@pytest.mark.parametrize("command", commands("olmo-hydra"))
def test_other_commands_parse(command: str) -> None:
    parsed = olmo_hydra_parser().parse_args(shlex.split(command))
    overrides = getattr(parsed, "overrides", [])
    of_a_run = command.startswith("data inspect") and any("=" not in text for text in overrides)
    if getattr(parsed, "out", None) or of_a_run:
        return  # they are sources of text, or a run
    if getattr(parsed, "sweep", None):
        for cell in cells(overrides):
            compose([f"sweep={parsed.sweep}", *cell])
        return
    compose([ANY_MODEL, *overrides] if command.startswith("data prepare") else overrides)


@pytest.mark.parametrize("example", code("console"))
def test_errors_read_as_shown(example: str) -> None:
    command, _, shown = example.partition("\n")
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "python"
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", shown)


@pytest.mark.parametrize("block", code("yaml"))
def test_example_sweeps_compose(block: str) -> None:
    key, values = re.findall(r"params: \{(.+): '(.+)'\}", block)[0]
    for value in values.split(","):
        compose([f"{key}={value}"])


def test_no_registry_and_no_path_of_a_machine() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.iterdir() if path.suffix in TEXT - {""}]
    texts = [path for path in files if path.is_file() and path.suffix in TEXT]
    assert {"README.md", "run", "constraints.txt", "pyproject.toml"} <= {path.name for path in texts}
    found = [
        f"{ident(path)}:{number}: {line}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NOT_PORTABLE.search(line)
    ]
    assert found == []
