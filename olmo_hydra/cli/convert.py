"""`olmo-hydra convert`: weights from one place and format to another. Imports no JAX before a command runs."""

import argparse
from pathlib import Path

RUNS = Path("runs")  # where runs lie that are given by name


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands below `convert`; each leaves its function in `convert`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, what: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=what)
        sub.set_defaults(convert=run)
        return sub

    sub = command("from-hf", _from_hf, "a run directory of weights from a folder of Hugging Face's")
    sub.add_argument("folder", type=Path, metavar="DIR", help="config.json, safetensors and tokenizer files")
    sub.add_argument("run", type=Path, metavar="RUN", help="the run directory to write; must not be there")

    sub = command("to-hf", _to_hf, "a folder that transformers loads, from a run")
    sub.add_argument("run", metavar="RUN[@STEP]", help="a run directory; without a step its newest checkpoint")
    sub.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; must not be there")
    sub.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: as in the run")


def _from_hf(parsed: argparse.Namespace) -> None:
    from olmo_hydra.interop import convert

    print(convert.from_hf(parsed.folder, parsed.run))


def _to_hf(parsed: argparse.Namespace) -> None:
    from olmo_hydra.interop import convert

    print(convert.to_hf(parsed.run, parsed.folder, parsed.dtype, RUNS))
