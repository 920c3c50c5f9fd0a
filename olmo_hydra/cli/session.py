"""One start of a run: everything assembled, trained, and put away again. Imports JAX."""

import logging
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from rich.console import Console

from olmo_hydra.cli import skipped
from olmo_hydra.cli.start import Start, missing_checkpoint, recorded
from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.config.identity import digest, run_name
from olmo_hydra.config.root import Config
from olmo_hydra.data.heldout import HeldoutDocument, digests
from olmo_hydra.data.loader import Batch
from olmo_hydra.data.opened import Data, open_data
from olmo_hydra.eval.in_loop import InLoop
from olmo_hydra.hardware import compile_cache, devices
from olmo_hydra.hardware.processes import Processes, join
from olmo_hydra.hardware.sharding import make_mesh, put, replicated, token_sharding
from olmo_hydra.hardware.watch import Watch
from olmo_hydra.interop.initial import Initial
from olmo_hydra.optim import schedules
from olmo_hydra.tracking.checkpoints import steps
from olmo_hydra.tracking.files import make_folder
from olmo_hydra.tracking.logs import RunLog
from olmo_hydra.tracking.progress import Progress
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.silent import Silent
from olmo_hydra.tracking.tracker import Tracker
from olmo_hydra.train import loop
from olmo_hydra.train.ahead import Ahead, ahead, compiled
from olmo_hydra.train.checkpoint import Checkpoints, Choice
from olmo_hydra.train.clock import Clock, start_begins
from olmo_hydra.train.lowering import abstract_state
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.profile import Profile
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.state import Program, State, make_program, stream
from olmo_hydra.train.step import make_step
from olmo_hydra.train.stop import Stopped, StopRequest

HeldOut = Mapping[str, Sequence[HeldoutDocument]]


def train(config: Config, overrides: list[str], run_dir: RunDir, stop: StopRequest, *, is_last: bool) -> None:
    """Starts or continues the run in `run_dir`, up to its horizon, `run.stop_at` or a stop request.

    Nothing in the directory changes before everything that can refuse the request has been asked.

    Args:
      config: Of the run.
      overrides: As typed.
      run_dir: Where it is, or will be.
      stop: Deferred from the first update on.
      is_last: Whether this process has no other run to make, so that several part once this one is trained.

    Raises:
      RequestError: The hardware is absent, the folder cannot be written, a text cannot be read, a checkpoint belongs to
        another run, ...
      RunFailed: The training went wrong.
      Stopped: It was asked to, and has saved its state where there was any to save.
    """
    clock = Clock(start_begins())
    processes = join(config.hardware)
    stop.share(processes)
    with ExitStack() as stack, Watch(processes, config.hardware.process_timeout) as watch:
        found = devices.acquire(config.hardware, shlex.join(overrides))
        cache = Path(config.run.root).absolute() / "cache"
        compile_cache.use(cache / "xla", repair=processes.first)
        progress = Progress(None if processes.first else Console(quiet=True))
        mesh = make_mesh(config.hardware, found)
        program = make_program(config, mesh)
        newest = max(steps(run_dir.checkpoints), default=0)
        pool = stack.enter_context(ahead(begins=newest < config.last_update))
        update = pool.do(lambda: compiled(program, make_step(program)))
        data = processes.in_turn("data", lambda: open_data(config, cache, progress.note))
        initial = _initial(config, program, progress) if not newest else None
        stack.enter_context(_held(run_dir, processes))
        store = Checkpoints(run_dir.checkpoints, config.checkpoint, writes=processes.first)
        checkpoints = stack.enter_context(closing(store))
        meta = {"run": run_name(config)}
        heldout = data.heldout()
        unseen = digests(heldout)

        clock.turn_to("restore")
        reading = Reading(config, data, mesh, unseen)
        choice = checkpoints.choose() if processes.first else Choice(None, ())
        done = processes.agreed("checkpoint", lambda: choice.step or 0)
        if not done:
            initial = initial or _initial(config, program, progress)  # all its checkpoints may be damaged
            state, data_changed, rows = initial.state() if initial else program.init(), None, {}
        else:
            record, accept_changed = checkpoints.record(done), config.checkpoint.accept_changed_data
            data_changed = reading.restore(record, checkpoints, done, accept_changed=accept_changed)
            state = checkpoints.restore(done, program.abstract, program.shardings, meta)
            rows = record.get("rows", {})

        clock.turn_to("open")
        tracker: Tracker | Silent = Silent()
        if processes.first:
            damaged = [damage.step for damage in choice.damaged]
            missing = missing_checkpoint(run_dir, done, damaged, config.checkpoint.on_corrupt)
            if missing:
                progress.note(f"checkpoint {missing} is gone: the run continues from update {done}")
            hashes = {"fingerprint": digest(data.fingerprint), "heldout": digest(unseen) if unseen else None}
            start = Start(
                config,
                overrides,
                run_dir,
                done,
                data=data.description | hashes,
                devices=devices.describe(found),
                evaluates=bool(heldout),
                rows=rows,
                init=initial.description if initial else None,
                events=[
                    *([("data_changed", data_changed)] if data_changed else []),
                    *([("checkpoint_missing", {"step": missing, "instead": done})] if missing else []),
                ],
            )
            tracker = recorded(start, progress, clock, stack)
            watch.when_lost = lambda event, text: tracker.event(event, error=text)
            _put_away(checkpoints, choice, tracker)
        stop.at_once = partial(_stopped_at_once, watch, tracker, done)
        processes.barrier("recorded")

        with _ended(run_dir, tracker, progress, stop, watch, done) as ended:
            traced = config.train.profile if processes.first else None
            profile = Profile(traced, done, config.last_update, run_dir.profile, clock, tracker.event, progress.note)
            parts = Parts(
                config=config,
                mesh=mesh,
                update=update,
                schedule=schedules.build(config.schedule),
                batches=stack.enter_context(closing(_batches(config, data, done, processes))),
                instances=lambda n: data.batches.instances(n, 1)[0],
                skipped=skipped.in_progress(run_dir.rows("events"), done, int(state.opt_state.consecutive_skips)),
                reading=reading,
                checkpoints=checkpoints,
                meta=meta,
                tracker=tracker,
                has_heldout=bool(heldout),
                evaluate=_evaluation(config, data, heldout, program, processes, tracker, progress, pool),
                stop=stop,
                clock=clock,
                profile=profile,
            )
            part = processes.part if is_last else lambda: None
            ended(*_trained(parts, state, done, run_dir, data, progress, watch, part))


def _trained(
    parts: Parts,
    state: State,
    done: int,
    run_dir: RunDir,
    data: Data,
    progress: Progress,
    watch: Watch,
    part: Callable[[], None],
) -> tuple[str, int]:
    """Trains from update `done`, and has the processes `part`. Returns how the run ended, and after which update.

    Raises:
      RunFailed: The training went wrong.
      Stopped: It was asked to.
    """
    config, stop = parts.config, parts.stop
    assert config.train.steps is not None
    if done > (config.run.stop_at or done):
        progress.note(f"run.stop_at={config.run.stop_at} is behind update {done}, where the run stands")
    progress.start(config.train.steps, done)
    explained = skipped.explained(run_dir, data, progress.note) if jax.process_index() == 0 else nullcontext()
    try:
        with explained, _told(watch):
            done = loop.run(parts, state, done)
            part()
        watch.over()
    finally:
        parts.profile.close()
        parts.clock.turn_to("ending")
    if done == config.train.steps:
        return "finished", done
    if stop.signal is None or done == config.run.stop_at:
        return "paused", done
    raise Stopped(stop.signal, done or None)


def _put_away(checkpoints: Checkpoints, choice: Choice, tracker: Tracker | Silent) -> None:
    """What killed starts have left half written, and what is damaged of the checkpoints."""
    checkpoints.clean()
    for damage in choice.damaged:
        aside = checkpoints.set_aside(damage.step)
        tracker.event("checkpoint_damaged", **asdict(damage), instead=choice.step or 0, aside=aside.name)


def _stopped_at_once(watch: Watch, tracker: Tracker | Silent, done: int, stopped: Stopped) -> None:
    watch.failed(stopped)
    tracker.event(stopped.event, step=done, signal=stopped.signal.name, seconds=0.0)


@contextmanager
def _told(watch: Watch) -> Iterator[None]:
    """The other processes hear of a failure at once: what follows takes time, in which they would wait."""
    try:
        yield
    except BaseException as error:
        watch.failed(error)
        raise


def _initial(config: Config, program: Program, progress: Progress) -> Initial | None:
    """Where the first parameters of a run that begins come from, if from elsewhere."""
    if config.init.source is None:
        return None
    initial = Initial(config.init, program, Path(config.run.root))
    progress.note(f"init: {config.init.load.value} of {initial.description['from']}")
    for difference in initial.description["differs"]:
        progress.note(f"init: there and here, {difference}")
    return initial


@contextmanager
def _held(run_dir: RunDir, processes: Processes) -> Iterator[None]:
    """The run directory, locked by process 0, with the warnings of each process going to its log as well."""
    with ExitStack() as stack:
        if processes.first:
            make_folder(run_dir.path)
            stack.enter_context(run_dir.lock())
            make_folder(run_dir.logs)
        processes.barrier("held")
        handler = RunLog(run_dir.logs / f"process_{processes.index}.log")
        logging.getLogger().addHandler(handler)
        stack.callback(handler.close)
        stack.callback(logging.getLogger().removeHandler, handler)
        yield


def _batches(config: Config, data: Data, done: int, processes: Processes) -> Generator[Batch]:
    """What this process reads of the batches after the first `done`."""
    threads, workers = config.hardware.loader_threads, config.hardware.loader_workers
    return data.batches.iterate(done, processes.index, processes.count, threads=threads, workers=workers)


@contextmanager
def _ended(
    run_dir: RunDir, tracker: Tracker | Silent, progress: Progress, stop: StopRequest, watch: Watch, done: int
) -> Iterator[Any]:
    """Yields the function that records how the run ended; an error that leaves the block is a failure.

    From then on a signal changes nothing: the end that is recorded stays, and its report is written.
    """
    outcome: dict[str, int] = {}

    def ended(kind: str, step: int, **fields: Any) -> None:
        stop.defer()
        outcome["status"] = 0
        progress.close()
        tracker.event(kind, step=step, **fields)

    first: BaseException | None = None
    try:
        yield ended
    except BaseException as error:
        first = error
        with _after(first):
            if isinstance(error, Stopped):
                outcome["status"] = error.status
                seconds = round(time.monotonic() - stop.since, 3)
                tracker.event(error.event, step=error.saved or done, signal=error.signal.name, seconds=seconds)
            else:
                stop.defer()
                watch.failed(error)
                fields = error.fields if isinstance(error, RunFailed) else {}
                why = error.problem if isinstance(error, RequestError) else error
                tracker.event("failed", error=f"{type(error).__name__}: {why}", **fields)
        raise
    finally:
        with _after(first):
            progress.close()
            tracker.finish(outcome.get("status", 1))
        if isinstance(tracker, Tracker):
            from olmo_hydra.report.build import write_report  # what it imports takes part of a second at every start

            with _after(first):
                write_report(run_dir)


@contextmanager
def _after(first: BaseException | None) -> Iterator[None]:
    """Errors of putting away after an error: the first is what has to be told, and they become notes of it."""
    try:
        yield
    except Exception as error:
        if first is None:
            raise
        first.add_note(f"and after it {type(error).__name__}: {error}")


def _evaluation(
    config: Config,
    data: Data,
    heldout: HeldOut,
    program: Program,
    processes: Processes,
    tracker: Tracker | Silent,
    progress: Progress,
    pool: Ahead,
) -> Callable[[int, nnx.State], Callable[[], None]]:
    evaluate = InLoop(
        config,
        data,
        heldout,
        program.graphdef,
        place=lambda array: put(array, token_sharding(program.mesh)),
        whole=replicated(program.mesh),
        first=processes.first,
        batch=-(-config.eval.batch // config.hardware.batch_shards) * config.hardware.batch_shards,
        key=stream(config.train.seed, "samples"),
        record=tracker.evaluation,
        note=progress.note,
    )

    compile_scoring = pool.do(lambda: evaluate.compile(abstract_state(program).params))

    def begun(step: int, params: nnx.State) -> Callable[[], None]:
        compile_scoring()
        record = evaluate(step, jax.device_put(params, program.shardings.params))

        def recorded() -> None:
            record()
            if step == 0:  # process 0 has counted baselines meanwhile
                processes.barrier("evaluated")

        return recorded

    return begun
