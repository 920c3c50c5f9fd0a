"""Where arrays lie, and what is said when the devices are not there."""

from functools import partial
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import PartitionSpec

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import batch_sharding, make_mesh, param_sharding, token_sharding


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    config = compose(["hardware=cpu_sim", "hardware.mesh.context=2", "hardware.mesh.tensor=2"])
    return make_mesh(config.hardware, devices.acquire(config.hardware, ""))


def test_mesh(mesh) -> None:
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "context": 2, "tensor": 2}
    assert mesh.devices[0, 1].ravel().tolist() == jax.devices()[4:], "neighbours share an instance"


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
    assert batch_sharding(mesh, leading=1).shard_shape((3, 16, 5)) == (3, 8, 5)
    assert token_sharding(mesh, leading=1).shard_shape((3, 16, 6)) == (3, 8, 3)


def test_absent_hardware_names_both_sides_and_the_commands() -> None:
    hardware = compose(["hardware=ironwood"]).hardware
    with pytest.raises(RequestError) as refused:
        devices.acquire(hardware, "hardware=ironwood")
    for part in ("wants 8 tpu devices (TPU7x)", "cpu device", "olmo-hydra preflight hardware=ironwood", "srun"):
        assert part in str(refused.value)


def test_too_few_devices() -> None:
    with pytest.raises(RequestError, match="wants 9 cpu devices; found 8 cpu devices"):
        devices.acquire(compose(["hardware.devices=9", "train.global_batch=9"]).hardware, "")


def test_only_data_crosses_slices(monkeypatch) -> None:
    """Two slices whose devices JAX lists in turns."""
    tpu = partial(SimpleNamespace, process_index=0, device_kind="TPU v5", platform="tpu")
    tpus = [tpu(id=i, slice_index=i % 2) for i in range(8)]
    monkeypatch.setattr(jax, "devices", lambda platform=None: tpus)
    two = ["hardware=v5p", "hardware.slices=2", "hardware.processes=1", "hardware.mesh.data=2", "train.global_batch=8"]
    hardware = compose(two).hardware
    assert (hardware.chips, hardware.devices, hardware.topology) == (8, 8, "2x2x1")
    mesh = make_mesh(hardware, devices.acquire(hardware, ""))
    assert [{one.slice_index for one in half.flat} for half in mesh.devices] == [{0}, {1}]
    with pytest.raises(RequestError, match=r"hardware\.slices=1.*is not the 2 that the devices say"):
        devices.acquire(compose([*two, "hardware.slices=1", "hardware.chips=8"]).hardware, "")
