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
    config = compose(["hardware=cpu_sim", "hardware.mesh.data=2", "hardware.mesh.tensor=2"])
    return make_mesh(config.hardware, devices.acquire(config.hardware, ""))


def test_mesh(mesh) -> None:
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert [device.id for device in mesh.devices[1, 0]] == [4, 5]  # neighbours share an instance


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("vocab", "embed"), (264, 128), ("tensor", "fsdp")),
        (("layers", "embed", "heads"), (8, 128, 64), (None, "fsdp", "tensor")),
        (("layers", "embed", "kv_heads"), (8, 128, 32), (None, "fsdp", "tensor")),
        (("layers", "heads", "embed"), (8, 64, 128), (None, "tensor", "fsdp")),
        (("layers", "mlp", "embed"), (8, 384, 128), (None, "tensor", "fsdp")),
        (("embed", "vocab"), (127, 264), (None, "tensor")),  # 127 does not divide over 2
        (("embed",), (128,), (None,)),
        (("layers", "heads"), (8, 128), (None, None)),
    ],
)
def test_param_sharding(mesh, axes, shape, expected) -> None:
    assert param_sharding(mesh, axes, shape).spec == PartitionSpec(*expected)


def test_batch_sharding(mesh) -> None:
    assert batch_sharding(mesh, leading=1).shard_shape((3, 16, 5)) == (3, 4, 5)


def test_absent_hardware_names_both_sides_and_the_commands() -> None:
    hardware = compose(["hardware=ironwood"]).hardware
    with pytest.raises(RequestError) as refused:
        devices.acquire(hardware, "hardware=ironwood")
    for part in ("wants 8 tpu devices (TPU7x)", "cpu device", "olmo-hydra preflight hardware=ironwood", "srun"):
        assert part in str(refused.value)


def test_too_few_devices() -> None:
    with pytest.raises(RequestError, match="wants 9 cpu devices; found 8 cpu devices"):
        devices.acquire(compose(["hardware.devices=9", "train.global_batch=9"]).hardware, "")
