"""One start of a run: everything assembled, trained, and put away again. Imports JAX."""

import logging
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import yaml
from jax.sharding import Mesh

from olmo_hydra.cli.guard import Interrupted
from olmo_hydra.config.errors import RequestError, show
from olmo_hydra.config.identity import digest, flat, plain, run_name, science
from olmo_hydra.config.root import OPERATIONS, Config
from olmo_hydra.data.heldout import HeldoutDocument, digests
from olmo_hydra.data.loader import Batch
from olmo_hydra.data.opened import Data, open_data
from olmo_hydra.eval.in_loop import InLoop
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import batch_sharding, make_mesh
from olmo_hydra.interop.initial import Initial
from olmo_hydra.interop.places import whole_steps
from olmo_hydra.optim import schedules
from olmo_hydra.report.build import write_report
from olmo_hydra.tracking import provenance
from olmo_hydra.tracking.files import make_folder, replace
from olmo_hydra.tracking.goodput import TimeSheet
from olmo_hydra.tracking.progress import Progress
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.tracker import Tracker, open_tracker
from olmo_hydra.train import loop
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.clock import Clock, start_begins
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.state import Program, make_program, stream
from olmo_hydra.train.step import make_step
from olmo_hydra.train.stop import StopRequest

HeldOut = Mapping[str, Sequence[HeldoutDocument]]


def train(config: Config, overrides: list[str], run_dir: RunDir) -> None:
    """Starts or continues the run in `run_dir`, up to its horizon, `run.stop_at` or a stop request.

    Nothing in the directory changes before everything that can refuse the request has been asked.

    Raises:
      RequestError: The hardware is absent, the folder cannot be written, a text cannot be read, a checkpoint belongs to
        another run, ...
      RunFailed: The training went wrong.
      Interrupted: It was asked to stop, and has saved its state.
    """
    clock = Clock(start_begins())
    found = devices.acquire(config.hardware, shlex.join(overrides))
    cache = Path(config.run.root).absolute() / "cache"
    jax.config.update("jax_compilation_cache_dir", str(cache / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        progress = Progress()
        data = open_data(config, cache, progress.note)
        mesh = make_mesh(config.hardware, found)
        program = make_program(config, mesh)
        initial = _initial(config, program, run_dir, progress)
        stack.enter_context(_held(run_dir))
        checkpoints = stack.enter_context(closing(Checkpoints(run_dir.checkpoints, config.checkpoint)))
        meta = {"run": run_name(config)}
        heldout = data.heldout()
        unseen = digests(heldout)
        clock.turn_to("restore")
        reading = Reading(config, data, mesh, unseen)
        done, data_changed = checkpoints.latest() or 0, None
        if done:
            accept = config.checkpoint.accept_changed_data
            data_changed = reading.restore(checkpoints, done, accept_changed=accept)
            state = checkpoints.restore(done, program.abstract, program.shardings, meta)
        elif config.init.source is None:
            state = program.init()
        else:
            assert initial is not None, "a run without a checkpoint begins"
            state = initial.state()

        clock.turn_to("open")
        changed = _freeze(config, overrides, run_dir)
        if done:
            _refuse_missing_rows(run_dir, evaluated=bool(heldout))
        record = Record(run_dir)
        record.rewind(done or None)
        clock.step = done
        times = TimeSheet(record, run_dir.rows("time"), config.hardware.devices, clock.reading)
        stack.callback(times.close)
        hashes = {"fingerprint": digest(data.fingerprint), "heldout": digest(unseen) if unseen else None}
        start = provenance.collect(config, overrides, done, data.description | hashes, devices.describe(found))
        provenance.append_start(run_dir, start)
        tracker = open_tracker(config, run_dir, run_name(config), record, progress, times)
        init = {"init": initial.description} if initial else {}
        tracker.event("resumed" if done else "started", step=done, **changed, **init)
        if data_changed:
            tracker.event("data_changed", step=done, **data_changed)
        if not heldout:
            progress.note("no text is held out: nothing will be evaluated (data.heldout_mix names text to evaluate)")
        with _ended(run_dir, tracker, progress) as ended:
            parts = Parts(
                config=config,
                mesh=mesh,
                step=make_step(program),
                schedule=schedules.build(config.schedule),
                batches=stack.enter_context(closing(_batches(config, data, done))),
                reading=reading,
                checkpoints=checkpoints,
                meta=meta,
                tracker=tracker,
                evaluate=_evaluation(config, data, heldout, program, mesh, tracker, progress),
                stop=stop,
                clock=clock,
            )
            assert config.train.steps is not None
            progress.start(config.train.steps, done)
            try:
                done = loop.run(parts, state, done)
            finally:
                clock.turn_to("ending")
            if done == config.train.steps:
                ended("finished", done)
            elif stop.signal is None:
                ended("paused", done)
            else:
                ended("interrupted", done, signal=stop.signal)
    if stop.signal is not None:  # also where the run has just finished: a sweep must not start its next cell
        raise Interrupted(stop.signal, done)


def _initial(config: Config, program: Program, run_dir: RunDir, progress: Progress) -> Initial | None:
    """Where the run's first parameters come from, if from elsewhere and it has no checkpoint yet."""
    if config.init.source is None or any(whole_steps(run_dir)):
        return None
    initial = Initial(config.init, program, Path(config.run.root))
    progress.note(f"init: {config.init.load.value} of {initial.description['from']}")
    for difference in initial.description["differs"]:
        progress.note(f"init: there and here, {difference}")
    return initial


@contextmanager
def _held(run_dir: RunDir) -> Iterator[None]:
    """The run directory, locked, with warnings going to its log as well."""
    with ExitStack() as stack:
        make_folder(run_dir.path)
        stack.enter_context(run_dir.lock())
        make_folder(run_dir.logs)
        handler = logging.FileHandler(run_dir.logs / "process_0.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        stack.callback(handler.close)
        stack.callback(logging.getLogger().removeHandler, handler)
        yield


def _freeze(config: Config, overrides: list[str], run_dir: RunDir) -> dict[str, Any]:
    """Writes config.yaml and overrides.yaml at the first start; later, says which operations differ from them.

    Raises:
      RequestError: The frozen science is not the run's: somebody edited the file.
    """
    now = plain(config)
    if not run_dir.config.exists():
        replace(run_dir.overrides, yaml.safe_dump(overrides).encode())
        replace(run_dir.config, yaml.safe_dump(now, sort_keys=False).encode())
        return {}
    with run_dir.config.open() as file:  # an open file, so that an error names it
        then = flat(yaml.safe_load(file))
    for key, value in flat(science(config)).items():
        if then.get(key) != value:
            raise RequestError(
                f"the run was frozen with {show(then.get(key))}; its config.yaml was edited",
                key=key,
                value=value,
                where=str(run_dir.config),
                instead="the original file, or run.tag=NAME for a run of its own",
            )
    differ = {
        key: {"was": then.get(key), "is": value}
        for key, value in flat({group: now[group] for group in OPERATIONS}).items()
        if then.get(key) != value
    }
    return {"changed": differ} if differ else {}


def _batches(config: Config, data: Data, done: int) -> Generator[Batch]:
    """The batches after the first `done`."""
    hardware = config.hardware
    return data.batches.iterate(done, threads=hardware.loader_threads, workers=hardware.loader_workers)


def _refuse_missing_rows(run_dir: RunDir, evaluated: bool) -> None:
    """A checkpoint is never ahead of its rows; where their beginning is gone, the record was damaged."""
    first = next((row["step"] for row in run_dir.rows("metrics")), None)
    at_start = {row["suite"] for row in run_dir.rows("evals") if row["step"] == 0}
    for path, is_there in ((run_dir.metrics, first == 1), (run_dir.evals, "heldout" in at_start or not evaluated)):
        if not is_there:
            raise RequestError(
                "rows are missing that were there when the checkpoint was saved",
                where=str(path),
                instead="a copy of the file, or run.tag=NAME for a run from the start",
            )


@contextmanager
def _ended(run_dir: RunDir, tracker: Tracker, progress: Progress) -> Iterator[Any]:
    """Yields the function that records how the run ended; an error that leaves the block is a failure."""
    outcome: dict[str, int] = {}

    def ended(kind: str, step: int, **fields: Any) -> None:
        outcome["status"] = 128 + fields["signal"] if "signal" in fields else 0
        progress.close()
        tracker.event(kind, step=step, **fields)

    try:
        yield ended
    except BaseException as error:
        tracker.event("failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        progress.close()
        tracker.finish(outcome.get("status", 1))
        write_report(run_dir)


def _evaluation(
    config: Config, data: Data, heldout: HeldOut, program: Program, mesh: Mesh, tracker: Tracker, progress: Progress
) -> Any:
    evaluate = InLoop(
        config,
        data,
        heldout,
        program.graphdef,
        place=lambda array: jax.device_put(array, batch_sharding(mesh)),
        batch=-(-config.eval.batch // mesh.size) * mesh.size,
        key=stream(config.train.seed, "samples"),
        record=tracker.evaluation,
        note=progress.note,
    )
    return lambda step, state: evaluate(step, state.params)
