"""Where arrays lie, and what is said when the devices are not there."""

import re
from functools import partial
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import PartitionSpec

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import batch_sharding, make_mesh, param_sharding, token_sharding
from tests.components import tpu_topology


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


TWO_SLICES = (
    *("hardware=v5p", "hardware.slices=2", "hardware.processes=1", "hardware.mesh.data=2", "hardware.mesh.context=2"),
    *("train.global_batch=8", "data.seq_len=256"),
)


def test_devices_come_slice_by_slice(monkeypatch) -> None:
    tpu = partial(SimpleNamespace, process_index=0, device_kind="TPU v5", platform="tpu")
    tpus = [tpu(id=i, slice_index=i % 2) for i in range(8)]
    monkeypatch.setattr(jax, "devices", lambda platform=None: tpus)
    hardware = compose(TWO_SLICES).hardware
    assert (hardware.chips, hardware.devices, hardware.topology) == (8, 8, "2x2x1")
    assert [one.slice_index for one in devices.acquire(hardware, "")] == [0] * 4 + [1] * 4
    with pytest.raises(RequestError, match=r"hardware\.slices=1.*is not the 2 that the devices say"):
        devices.acquire(compose([*TWO_SLICES, "hardware.slices=1", "hardware.chips=8"]).hardware, "")


def test_only_data_crosses_slices(monkeypatch) -> None:
    """The compiler of two v5p slices: all groups lie within one, but for what its runtime of several slices sends."""
    hardware = compose(TWO_SLICES).hardware
    topology = tpu_topology(monkeypatch, f"v5p:{hardware.topology}", num_slices=2)
    mesh = make_mesh(hardware, devices.in_slices(reversed(topology.devices)))
    assert [{device.slice_index for device in half.flat} for half in mesh.devices] == [{0}, {1}]
    weight = jax.ShapeDtypeStruct((256, 128), "bfloat16", sharding=param_sharding(mesh, ("embed", "mlp"), (256, 128)))
    x_BTD = jax.ShapeDtypeStruct((8, 256, 256), "bfloat16", sharding=token_sharding(mesh))
    gradient = jax.jit(jax.grad(lambda w, x: ((x @ w) ** 2).sum().astype("float32")), out_shardings=weight.sharding)
    text = gradient.lower(weight, x_BTD).compile().as_text()
    groups = re.findall(r"replica_groups=\{\{([\d,{}]+)\}\}", text)
    within = [{int(device) // 4 for device in group.split(",")} for found in groups for group in found.split("},{")]
    assert within and all(len(slices) == 1 for slices in within) and "megascale" in text
