"""`olmo-hydra data`: prepare text, look at what a run reads, prove how often. Imports nothing heavy before that."""

import argparse
from pathlib import Path

from olmo_hydra.cli.commands import Commands
from olmo_hydra.config.tokenizers import WAYS


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands below `data`."""
    commands = Commands(parser)

    sub = commands.add("prepare", "prepare the text of a config; or of files and folders, with --out", _prepare)
    sub.add_argument(
        "overrides",
        nargs="*",
        metavar="SOURCE",
        help="overrides as for train.py: data=python_text; or, with --out, text: [NAME=][KIND:]PLACE, where PLACE is a "
        "file or folder, and KIND may be code, huggingface, deb or pypi",
    )
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="where the corpus shall be")
    sub.add_argument("--tokenizer", metavar="T", help=WAYS)
    sub.add_argument("--heldout", action="append", metavar="SOURCE", help="text that is never trained on; repeatable")
    sub.add_argument(
        "--heldout-fraction", type=float, metavar="F", help="of the documents of each SOURCE (0.05; 0 with --heldout)"
    )
    sub.add_argument("--text-field", metavar="FIELD", help="where records have their text (text)")
    sub.add_argument("--workers", type=int, metavar="N", help="processes (one a core); the corpus is the same")
    sub.add_argument(
        "--keep-duplicates", action="store_true", default=None, help="keep copies, but for those of held-out documents"
    )
    sub.add_argument("--shard-tokens", type=int, metavar="N", help="the most tokens of a file (268,435,456)")
    sub.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="count the 13-grams that held-out and training text share",
    )
    _add_json(sub)

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
    sub.add_argument("overrides", nargs="*", help="as for train.py: data=python_text")
    sub.add_argument("--processes", type=int, default=1, metavar="N", help="processes that read (1)")
    sub.add_argument("--epochs", type=int, metavar="E", help="epochs to simulate; default: those of the run, at most 4")
    sub.add_argument("--all", action="store_true", help="ask the repetition filter about every instance, not a sample")
    sub.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw it")
    _add_json(sub)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _prepare(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import prepare

    prepare.run(parsed)


def _inspect(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import inspect

    inspect.run(parsed)


def _audit(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import audit

    audit.run(parsed)
