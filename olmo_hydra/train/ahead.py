"""What is compiled in a thread of its own while a run starts: XLA holds no lock of Python's."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeVar

from olmo_hydra.hardware import compiler
from olmo_hydra.train.lowering import abstract_state, lower
from olmo_hydra.train.state import Program
from olmo_hydra.train.step import Step

Result = TypeVar("Result")


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


class Ahead:
    """Work that is begun now, in turn, if `pool` has a thread for it; else by the first who wants its result."""

    def __init__(self, pool: ThreadPoolExecutor | None):
        self._pool = pool

    def do(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Returns a function that waits for the result, or raises what the work raised."""
        return cache(work) if self._pool is None else self._pool.submit(work).result


@contextmanager
def ahead(*, begins: bool) -> Iterator[Ahead]:
    """One thread that does the work, if it `begins` now. After an error nobody waits for it."""
    if not begins:
        yield Ahead(None)
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        yield Ahead(pool)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(cancel_futures=True)
