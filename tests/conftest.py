"""Shared by all tests: eight simulated devices, so that sharding is tested without accelerators; what is compiled."""

import os
import shutil
import signal
import tempfile

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
