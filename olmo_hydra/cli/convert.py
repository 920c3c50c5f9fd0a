"""`olmo-hydra convert`: weights from one place and format to another. Imports no JAX before a command runs."""

import argparse
from pathlib import Path

from olmo_hydra.cli.commands import Commands
from olmo_hydra.cli.say import say


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands below `convert`."""
    commands = Commands(parser)

    sub = commands.add("from-hf", "a run directory of weights from a folder of Hugging Face's", _from_hf)
    sub.add_argument("source", type=Path, metavar="DIR", help="config.json, safetensors and tokenizer files")
    sub.add_argument("target", type=Path, metavar="RUN", help="the run directory to write; must not be there")

    sub = commands.add("to-hf", "a folder that transformers loads, from a run", _to_hf)
    sub.add_argument("source", metavar="RUN[@STEP]", help="a run directory; without a step its newest checkpoint")
    sub.add_argument("target", type=Path, metavar="DIR", help="the folder to write; must not be there")
    sub.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: as in the run")
    sub.add_argument("--tokenizer", type=Path, metavar="DIR", help="take the tokenizer of this folder along")
    _add_root(sub)

    sub = commands.add("verify", "whether two places hold the same model: exit status 0, or 1", _verify)
    sub.add_argument("a", metavar="A", help="a Hugging Face folder, a run, RUN@STEP, or a checkpoint of a run")
    sub.add_argument("b", metavar="B", help="as A")
    sub.add_argument("--prompts", type=int, default=64, metavar="N", help="prompts of random tokens (64)")
    sub.add_argument("--length", type=int, default=128, metavar="T", help="tokens of each (128)")
    for flag, what in (
        ("--kl", "the KL divergence in nats (fp32: 1e-8 at most; else 1.5e-3 on average)"),
        ("--logits", "the difference of two logits (fp32: 2e-5, more if they spread over 1; else none)"),
        ("--tensor", "the relative error of a tensor's row (fp32: 1e-5; else 2^-8)"),
    ):
        sub.add_argument(flag, type=float, metavar="X", help=f"limit of {what}")
    sub.add_argument(
        "--top-k", type=int, nargs="+", default=[10], metavar="K", help="show the overlap of the K likeliest"
    )
    sub.add_argument("--json", action="store_true", help="one JSON object on standard output")
    _add_root(sub)

    sub = commands.add("soup", "a run directory of the average of several trainings of one model", _soup)
    sub.add_argument("target", type=Path, metavar="OUT", help="the run directory to write; must not be there")
    sub.add_argument("sources", nargs="+", metavar="IN", help="as A of verify; at least two")
    sub.add_argument(
        "--weights", type=float, nargs="+", metavar="W", help="of each, divided by their sum; default: equal"
    )
    sub.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: as in the first")
    _add_root(sub)


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, default=Path("runs"), metavar="DIR", help="where runs lie that are given by name (runs)"
    )


def _refuse_no_utf8(*names: object) -> None:
    from olmo_hydra.interop.whole import refuse_no_utf8

    for name in names:
        refuse_no_utf8(str(name))


def _from_hf(parsed: argparse.Namespace) -> None:
    from olmo_hydra.interop import convert

    _refuse_no_utf8(parsed.source, parsed.target)
    say(convert.from_hf(parsed.source, parsed.target))


def _to_hf(parsed: argparse.Namespace) -> None:
    from olmo_hydra.interop import convert

    _refuse_no_utf8(parsed.source, parsed.target, parsed.root)
    say(convert.to_hf(parsed.source, parsed.target, parsed.root, parsed.dtype, parsed.tokenizer))


def _verify(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import verify

    _refuse_no_utf8(parsed.a, parsed.b, parsed.root)
    verify.run(parsed)


def _soup(parsed: argparse.Namespace) -> None:
    from olmo_hydra.config.dtypes import DType
    from olmo_hydra.interop.soup import soup

    _refuse_no_utf8(*parsed.sources, parsed.target, parsed.root)
    dtype = None if parsed.dtype is None else DType(parsed.dtype)
    say(soup(parsed.sources, parsed.target, parsed.root, parsed.weights, dtype))
