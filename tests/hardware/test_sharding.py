"""Where arrays lie, and what is said when the devices are not there."""

import jax
import pytest
from jax.sharding import PartitionSpec

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import batch_sharding, make_mesh, param_sharding


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    config = compose(["hardware=cpu_sim", "hardware.mesh.data=2"])
    return make_mesh(config.hardware, devices.acquire(config.hardware, ""))


def test_mesh(mesh) -> None:
    assert dict(mesh.shape) == {"data": 2, "fsdp": 4}


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("vocab", "embed"), (264, 128), (None, "fsdp")),
        (("layers", "embed", "heads"), (8, 128, 64), (None, "fsdp", None)),
        (("layers", "mlp", "embed"), (8, 384, 128), (None, None, "fsdp")),
        (("embed", "vocab"), (126, 264), (None, None)),  # 126 does not divide over 4
        (("embed",), (128,), (None,)),
        (("layers", "embed"), (8, 128), (None, None)),
    ],
)
def test_param_sharding(mesh, axes, shape, expected) -> None:
    assert param_sharding(mesh, axes, shape).spec == PartitionSpec(*expected)


def test_batch_sharding(mesh) -> None:
    assert batch_sharding(mesh, leading=1).shard_shape((3, 16, 5)) == (3, 2, 5)


def test_absent_hardware_names_both_sides_and_the_commands() -> None:
    hardware = compose(["hardware=ironwood"]).hardware
    with pytest.raises(RequestError) as refused:
        devices.acquire(hardware, "hardware=ironwood")
    for part in ("wants 8 tpu devices (TPU7x)", "cpu device", "olmo-hydra preflight hardware=ironwood", "srun"):
        assert part in str(refused.value)


def test_too_few_devices() -> None:
    with pytest.raises(RequestError, match="wants 9 cpu devices; found 8 cpu devices"):
        devices.acquire(compose(["hardware.devices=9", "train.global_batch=9"]).hardware, "")
