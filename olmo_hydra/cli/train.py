"""`python train.py`: one run, from the composed config to the report. Imports no JAX before it has to."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from olmo_hydra.cli.guard import FAILED, WRONG_REQUEST
from olmo_hydra.cli.say import say
from olmo_hydra.cli.summary import summary
from olmo_hydra.config.arguments import refuse_silent_mistakes
from olmo_hydra.config.compose import compose, resolve
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import Platform
from olmo_hydra.config.identity import run_name
from olmo_hydra.config.root import Config
from olmo_hydra.hardware import environment
from olmo_hydra.hardware.environment import Place, from_environment, have_met, is_first
from olmo_hydra.interop.places import refuse_another_origin
from olmo_hydra.launch.local import start_others
from olmo_hydra.tracking.files import make_folder
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.train.stop import Stopped, StopRequest

SECONDS_TO_PART = 80  # JAX would end the process, in its own words, 100 s after it has last heard of another one


def check(arguments: Sequence[str]) -> None:
    """Refuses what Hydra lets pass: silent mistakes, and with `--cfg job` a config that breaks a rule.

    Raises:
      RequestError: The first of them.
    """
    parsed = get_args_parser().parse_args(list(arguments))
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise RequestError("--resolve goes with --cfg", instead="--cfg job --resolve")
    if parsed.cfg and parsed.multirun:
        raise RequestError("--cfg shows one run, -m is a sweep of several", instead="--cfg job without -m")
    refuse_silent_mistakes(parsed.overrides)
    sweep = next((override for override in parsed.overrides if override.startswith("sweep=")), None)
    if sweep and not parsed.multirun and parsed.cfg is parsed.info is None:
        raise RequestError("an ablation is a sweep of several runs", key=sweep, instead=f"-m {sweep}")
    if parsed.multirun:  # Hydra itself writes there before any cell is looked at
        root = next((o.partition("=")[2] for o in parsed.overrides if o.startswith("run.root=")), None)
        if root is not None:
            make_folder(Path(root))
    if parsed.cfg == "job" and parsed.config_name is parsed.config_path is parsed.config_dir is None:
        compose(parsed.overrides)


def run(cfg: DictConfig) -> None:
    """Trains the run that `cfg` describes, continues it, or says that it is finished.

    Raises:
      Stopped: It was asked to stop; of a sweep also where the run has just finished, so that the next one never begins.
    """
    with StopRequest() as stop:
        config = resolve(cfg)
        _run(config, stop)
        if (number := stop.ends_sweep()) and in_sweep():
            raise Stopped(number, config.train.steps)


def in_sweep() -> bool:
    """Whether Hydra runs several configs, one after the other."""
    return bool(HydraConfig.get().mode is RunMode.MULTIRUN)


def _run(config: Config, stop: StopRequest) -> None:
    run_dir = RunDir(Path(config.run.root) / run_name(config))
    if config.init.source is not None:
        refuse_another_origin(config.init.source, Path(config.run.root), run_dir)
    if run_dir.finished():
        if is_first():
            say(f"finished already: {run_dir.path} (run.tag=NAME starts another run of the same config)\n")
    else:
        count = config.hardware.processes
        assert count is not None
        if count > 1 and from_environment() is None and config.hardware.platform is Platform.cpu:
            start_others(count, lambda index, address: Place(index, count, address).variables(), have_met)
        from olmo_hydra.cli.session import train

        train(config, list(HydraConfig.get().overrides.task), run_dir, stop, is_last=not in_sweep())
    stop.defer()
    if not is_first():
        return
    if run_dir.finished() and _is_stale(run_dir):
        from olmo_hydra.report.build import write_report

        write_report(run_dir)
    say(summary(run_dir))


def _is_stale(run_dir: RunDir) -> bool:
    """Whether the process was killed between the last event and the report of it."""
    return not run_dir.report.exists() or run_dir.report.stat().st_mtime < run_dir.events.stat().st_mtime


def _parted() -> bool:
    """After the runs of a sweep: waits for the other processes. False: in vain."""
    from olmo_hydra.hardware.processes import part_within

    return part_within(SECONDS_TO_PART)


def end(status: Callable[[], int]) -> NoReturn:
    """Ends the process with the status that a command has.

    Once JAX is there, one that has not done what it should ends without the interpreter's own end, in which threads of
    XLA that still compile crash, and in which JAX waits for the other processes of a run.
    """
    try:
        number = status()
    except SystemExit:  # of Hydra's: --help
        raise
    except BaseException:
        traceback.print_exc()
        number = FAILED
    alone = number in (FAILED, WRONG_REQUEST) or not have_met() or environment.parted or _parted()
    if (number and "jax" in sys.modules) or not alone:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(number)
    sys.exit(number)
