"""Several processes of a run on this machine: the one that was started is process 0, and starts the others."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # of prctl(2)
PATIENCE = 10.0  # seconds in which the processes find out by themselves that one is gone, and say it better


def start_others(count: int, variables: Callable[[int, str], dict[str, str]]) -> None:
    """Runs the command of this process in `count - 1` further ones, and tells each who it is by its environment.

    None outlives this one, however it ends: on Linux the kernel sees to that. If one fails, so does this one. What they
    print goes nowhere, but for errors, which go where this one's go.

    Args:
      count: Processes, this one included.
      variables: The environment of a process, by its number and the address (host:port) at which all meet.
    """
    address = f"127.0.0.1:{_free_port()}"
    os.environ.update(variables(0, address))
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    for index in range(1, count):
        process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env=os.environ | variables(index, address),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=None if prctl is None else lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        threading.Thread(target=_end_with, args=(index, process), daemon=True).start()


def _end_with(index: int, process: subprocess.Popen) -> None:
    status = process.wait()
    if status:
        time.sleep(PATIENCE)
        os.write(2, f"\nfailed: process {index} (pid {process.pid}) ended with status {status}\n".encode())
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
