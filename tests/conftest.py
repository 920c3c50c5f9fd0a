"""Shared by all tests: eight simulated devices, so that sharding is tested without accelerators; what is compiled."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

COMPILED = "OLMO_HYDRA_TESTS_COMPILED"  # names the folder to pytest's workers


def pytest_configure(config: pytest.Config) -> None:
    """Before anything starts JAX's back end, in every worker. They compile each program once between them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of `pytest &`: commands under test would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    if COMPILED not in os.environ:
        folder = os.environ[COMPILED] = tempfile.mkdtemp(prefix="compiled-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", os.environ[COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test marked `traces` in a fresh process where this one has loaded libtpu."""
    maps = Path("/proc/self/maps")  # libtpu is for Linux
    if pyfuncitem.get_closest_marker("traces") is None or not maps.exists() or "libtpu" not in maps.read_text():
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return True
