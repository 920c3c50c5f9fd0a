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
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of prctl(2)
BEAT = 0.5  # seconds
FROZEN = 40  # beats for which a process is stopped when it counts as gone
PATIENCE = 2.0  # seconds in which this process ends by the same error as another one


def start_others(count: int, variables: Callable[[int, str], dict[str, str]], have_met: Callable[[], bool]) -> None:
    """Runs the command of this process in `count - 1` further ones, and tells each who it is by its environment.

    None outlives this one, however it ends: on Linux the kernel sees to that. If one fails, so does this one. What they
    print goes nowhere, but for errors, which go where this one's go.

    Args:
      count: Processes, this one included.
      variables: The environment of a process, by its number and the address (host:port) at which all meet.
      have_met: Whether they have: from then on they watch over one another.
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
        threading.Thread(target=_end_with, args=(index, process, have_met), daemon=True).start()


def _end_with(index: int, process: subprocess.Popen, have_met: Callable[[], bool]) -> None:
    frozen = 0
    while process.poll() is None and frozen < FROZEN:
        time.sleep(BEAT)
        if have_met():
            return
        frozen = frozen + 1 if _is_frozen(process.pid) else 0
    if process.returncode == 0:
        return
    time.sleep(PATIENCE)
    how = "is stopped" if process.returncode is None else f"ended with status {process.returncode}"
    os.write(2, f"\nfailed: process {index} (pid {process.pid}) {how}; the same command continues\n".encode())
    process.kill()
    os._exit(1)


def _is_frozen(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
