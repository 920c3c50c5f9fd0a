"""A run that is never stopped, which those that are stopped are compared with."""

import pytest

from benchmarks.kills.campaign import never_killed
from benchmarks.kills.job import Job


@pytest.fixture(scope="session")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return never_killed(tmp_path_factory.mktemp("never") / "unbroken")
