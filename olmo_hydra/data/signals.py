"""Signals that a run handles itself and its worker processes never see."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# Schedulers may send theirs to every process of a job.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def kept_from_children(*numbers: signal.Signals) -> Iterator[None]:
    """While processes are started that these signals shall not reach, from their first instruction on.

    They inherit what is blocked here, also through threads that are started meanwhile. What is sent to this process is
    handled by another of its threads, or afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
