"""`olmo-hydra`: every command other than training. Modules of a command are imported when it runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from olmo_hydra.cli import convert, data
from olmo_hydra.cli.commands import Commands
from olmo_hydra.cli.guard import guarded
from olmo_hydra.cli.say import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    parser = _parser()
    parsed, behind = parser.parse_known_args(arguments)  # argparse takes positionals in one place only
    if not hasattr(parsed, "overrides") or any(argument.startswith("-") for argument in behind):
        parser.parse_args(arguments)  # says what it does not know
    else:
        parsed.overrides += behind
    return guarded(lambda: parsed.run(parsed), getattr(parsed, "overrides", []))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "olmo-hydra", description="Commands around training runs. To train: python train.py"
    )
    commands = Commands(parser)

    sub = commands.add("preflight", "what a run will take, computed without its hardware", _preflight)
    sub.add_argument("overrides", nargs="*", help="as for train.py: model=olmo3_7b hardware=ironwood")
    sub.add_argument("--over", metavar="TOPOLOGIES", help="a line for each: 2x2x1,4x4x4, or numbers of chips: 4,64")
    sub.add_argument("--compile", action="store_true", help="compile the update for its TPUs, on this machine")
    sub.add_argument(
        "--fit", action="store_true", help="with --compile: the smallest change with which it fits a device's memory"
    )
    sub.add_argument("--sweep", metavar="NAME", help="with --compile: compare the cells of sweeps/NAME.yaml")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="with --sweep: where its plot goes; else here")
    sub.add_argument("--json", action="store_true", help="one JSON object; of --over and --sweep, a list")

    data.add_commands(commands.add("data", "prepare text, see what a run reads, prove how often"))
    convert.add_commands(commands.add("convert", "weights from and to Hugging Face's format"))

    sub = commands.add("report", "write report.html of a run from its directory", _report)
    sub.add_argument("run_directories", type=Path, nargs="+", metavar="RUN")

    sub = commands.add("models", "a table of the models and their parameters", _models)
    sub.add_argument("--json", action="store_true", help="one JSON list on standard output")

    sub = commands.add("runs", "a table of runs and their states; with --sync, their record to W&B", _runs)
    sub.add_argument(
        "folders",
        type=lambda text: Path(text.removeprefix("run.root=")),
        nargs="*",
        default=[Path("runs")],
        metavar="FOLDER",
        help="roots of runs, or run directories",
    )
    sub.add_argument("--sync", action="store_true", help="send to W&B what it lacks of runs that nobody is writing")
    sub.add_argument("--json", action="store_true", help="one JSON list on standard output")
    return parser


def _preflight(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import preflight

    preflight.refuse_together(
        compile=parsed.compile, over=parsed.over, fit=parsed.fit, sweep=parsed.sweep, out=parsed.out
    )
    if parsed.sweep is not None:
        from olmo_hydra.cli import preflight_sweep

        preflight_sweep.run(parsed.sweep, parsed.overrides, parsed.json, parsed.out or Path())
    elif parsed.compile:
        from olmo_hydra.cli import preflight_compile

        preflight_compile.run(parsed.overrides, parsed.json, parsed.fit)
    else:
        preflight.run(parsed.overrides, parsed.json, parsed.over)


def _report(parsed: argparse.Namespace) -> None:
    from olmo_hydra.report.build import write_report
    from olmo_hydra.tracking.run_dir import RunDir

    for folder in parsed.run_directories:
        say(str(write_report(RunDir(folder))))


def _models(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import models

    models.run(parsed.json)


def _runs(parsed: argparse.Namespace) -> None:
    from olmo_hydra.cli import runs

    found = runs.find(parsed.folders)
    if parsed.sync:
        runs.sync(found, parsed.json)
    else:
        runs.show(found, parsed.json)


if __name__ == "__main__":
    sys.exit(main())
