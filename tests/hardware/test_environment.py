"""Which process of a run one is, from the environment of whoever started it."""

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.hardware.environment import Place, from_environment

JAX = {"JAX_COORDINATOR_ADDRESS": "host-1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}


def test_alone() -> None:
    assert from_environment({}) is None


def test_variables_go_both_ways() -> None:
    place = Place(2, 4, "host-1:1234")
    assert from_environment(JAX) == place and place.variables() == JAX


def test_a_step_of_slurm() -> None:
    assert from_environment(SLURM) == Place(3, 4, None)
    assert from_environment(SLURM | JAX) == Place(2, 4, "host-1:1234"), "what is said explicitly counts"
    assert from_environment(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    batch_script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert from_environment(batch_script) is None, "the script of a job runs once, whatever its steps will be"


@pytest.mark.parametrize("lacking", JAX)
def test_all_of_the_variables_or_none(lacking: str) -> None:
    with pytest.raises(RequestError, match=lacking):
        from_environment({name: value for name, value in JAX.items() if name != lacking})


@pytest.mark.parametrize("wrong", [("4", "4"), ("4", "-1"), ("four", "0"), ("0", "0"), ("4", "1.5")])
def test_numbers_that_are_none(wrong: tuple[str, str]) -> None:
    with pytest.raises(RequestError, match="JAX_PROCESS_ID="):
        from_environment(JAX | dict(zip(("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), wrong, strict=True)))
    with pytest.raises(RequestError, match="SLURM_PROCID="):
        from_environment(SLURM | dict(zip(("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), wrong, strict=True)))


@pytest.mark.parametrize("address", ["host-1", "host-1:", ":1234", "host-1:port", "host-1:0", "host-1:99999"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(RequestError, match=f"JAX_COORDINATOR_ADDRESS={address} is no address"):
        from_environment(JAX | {"JAX_COORDINATOR_ADDRESS": address})
