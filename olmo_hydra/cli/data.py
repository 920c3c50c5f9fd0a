"""`olmo-hydra data`: prepare text, look at what a run reads, prove how often. Imports nothing heavy before that."""

import argparse
from pathlib import Path

from olmo_hydra.cli.commands import Commands


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands below `data`."""
    commands = Commands(parser)

    sub = commands.add("prepare", "prepare the text of a config", _prepare)
    _add_overrides(sub)

    sub = commands.add("inspect", "what an update reads, what reads a document; or a prepared text", _inspect)
    sub.add_argument("overrides", nargs="*", metavar="RUN", help="a run; or overrides as for train.py")
    sub.add_argument("--step", type=int, metavar="N", help="show the batch that update N reads")
    sub.add_argument("--find", metavar="TEXT", help="which updates read documents that hold this text")
    sub.add_argument("--document", metavar="NAME", help="which updates read the document of this name")
    sub.add_argument("--file", metavar="FILE", help="search this token file alone; with --offset: one place in it")
    sub.add_argument("--offset", type=int, metavar="TOKEN", help="which updates read this token of --file")
    sub.add_argument("--instance", type=int, metavar="I", help="one instance: of the batch, or which updates read it")
    sub.add_argument("--documents", type=int, default=3, metavar="K", help="show K documents an instance (3)")
    sub.add_argument(
        "--root", type=Path, default=Path("runs"), metavar="DIR", help="where runs lie that are given by name (runs)"
    )
    _add_json(sub)

    sub = commands.add("audit", "simulate what a run reads: exit status 1 where anything is read twice", _audit)
    _add_overrides(sub)
    sub.add_argument("--processes", type=int, default=1, metavar="N", help="processes that read (1)")
    sub.add_argument("--epochs", type=int, metavar="E", help="epochs to simulate; default: those of the run, at most 4")
    sub.add_argument("--all", action="store_true", help="ask the repetition filter about every instance, not a sample")
    sub.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw it")


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="as for train.py: data=python_text")
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _prepare(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import inspect

    inspect.prepared(parsed.overrides, parsed.json, check=False)


def _inspect(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import inspect

    inspect.run(parsed)


def _audit(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import audit

    audit.run(parsed)
