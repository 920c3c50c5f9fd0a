"""Shared by all tests: eight simulated devices, so that sharding is tested without accelerators."""

import jax


def pytest_configure() -> None:
    """Before anything starts JAX's back end, in every worker."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
