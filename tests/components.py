"""Components and devices that some tests need and a bare machine may lack."""

import importlib.util
import os
from typing import Any

import pytest


def require_hardware(name: str, found: bool, how: str) -> None:
    """Skips the test when a device is absent, also where OLMO_HYDRA_REQUIRE_ALL=1: no machine of the CI has it.

    Args:
      name: What is needed (`an NVIDIA GPU`).
      found: Whether it is there.
      how: The command that makes the same check where it is.
    """
    if not found:
        pytest.skip(f"{name} is absent; to check where there is one: {how}")


def require_component(name: str, found: bool, how: str) -> None:
    """Skips the test when a component is absent; fails it when OLMO_HYDRA_REQUIRE_ALL=1 promises that none is.

    OLMO_HYDRA_ABSENT names, with commas between, those that may be absent all the same.

    Args:
      name: What is needed (`Chromium`).
      found: Whether it is there.
      how: The command that installs it.
    """
    if not found:
        message = f"{name} is absent; to run this test: {how}"
        may_be_absent = name in os.environ.get("OLMO_HYDRA_ABSENT", "").split(",")
        if os.environ.get("OLMO_HYDRA_REQUIRE_ALL") == "1" and not may_be_absent:
            pytest.fail(message)
        pytest.skip(message)


def require_libtpu() -> None:
    """The compiler of TPUs, which needs none."""
    found = importlib.util.find_spec("libtpu") is not None
    require_component("libtpu", found, 'pip install -c constraints.txt -e ".[tpu]"')


def tpu_topology(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> Any:
    """Devices that are not here, to compile for (`tpu7x:1x1x1`; `num_slices=2`), by the compiler that they use."""
    require_libtpu()
    from jax.experimental import topologies

    from olmo_hydra.hardware.ahead import ENVIRONMENT

    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    return topologies.get_topology_desc(name, platform="tpu", **options)
