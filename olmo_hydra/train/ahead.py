"""What is compiled in a thread of its own while a run starts: XLA holds no lock of Python's."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from olmo_hydra.hardware import compiler
from olmo_hydra.train.lowering import abstract_state, lower
from olmo_hydra.train.state import Program
from olmo_hydra.train.step import Step


class Update(NamedTuple):
    """The compiled update, with its state donated, and the seconds that tracing and compiling it took."""

    step: Step
    seconds: float


def compiled(program: Program, step: Step) -> Update:
    """The update of a run, from the function that `make_step` made.

    Raises:
      RequestError: `hardware.compiler_options` are not the compiler's.
    """
    began = time.perf_counter()
    config = program.config
    lowered = lower(config, program.mesh, step, abstract_state(program))
    executable = compiler.compiled(lowered, config.hardware)
    return Update(executable, time.perf_counter() - began)


@contextmanager
def ahead() -> Iterator[ThreadPoolExecutor]:
    """One thread that does in turn what it is given. After an error nobody waits for it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(cancel_futures=True)
