"""What libtpu says of small programs, against numbers known from elsewhere or counted by hand."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig
from olmo_hydra.hardware import ahead
from tests.components import require_libtpu

CHIPS = {"ironwood": ("1x1x1", 94.74), "v5p": ("1x1x1", 95.73), "v6e": ("1x1", 31.24), "v5e": ("1x1", 15.75)}


@pytest.fixture(autouse=True)
def libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    require_libtpu()
    for name, value in ahead.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def hardware(name: str, *overrides: str) -> HardwareConfig:
    return compose([f"hardware={name}", f"hardware.topology={CHIPS[name][0]}", *overrides]).hardware


def compiled(cfg: HardwareConfig, function, *shapes: tuple[int, ...], spec=(), dtype=jnp.bfloat16):
    """A function of arrays that all lie alike on the devices of one chip."""
    mesh = Mesh(ahead.devices(cfg), "x")
    where = NamedSharding(mesh, PartitionSpec(*spec))
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape in shapes]
    return ahead.compile_for(jax.jit(function, out_shardings=NamedSharding(mesh, PartitionSpec())).lower(*arrays), cfg)


def in_all(found: ahead.Compiled) -> int:
    return sum(found.estimate.cycles.values())


@pytest.mark.parametrize(
    ("name", "narrow", "wide"), [("ironwood", 2_393_720, 1_340_840), ("v5p", 2_904_656, 1_514_032)]
)
def test_a_product_of_queries_and_keys(name: str, narrow: int, wide: int) -> None:
    """Sequence 4096 in bf16: 32 heads of 128, and 16 of 256 at equal FLOPs, as an earlier program of ours counted."""
    cfg = hardware(name)
    cfg.compiler_options = {}
    for heads, head_dim, cycles in ((32, 128, narrow), (16, 256, wide)):
        shape = (1, heads, 4096, head_dim)
        found = compiled(cfg, lambda q, k: jnp.einsum("bhtd,bhsd->bhts", q, k), shape, shape)
        assert in_all(found) == cycles


@pytest.mark.parametrize("name", CHIPS)
def test_a_large_product_reaches_the_peak_at_the_derived_clock_and_never_more(name: str) -> None:
    cfg = hardware(name)
    peak, clock = cfg.chip.of_device("peak_tflops"), cfg.chip.clock_ghz
    assert peak is not None and clock is not None
    found = compiled(cfg, jnp.matmul, (4096, 4096), (4096, 4096))
    seconds = in_all(found) / (clock * 1e9)
    assert 0.8 < 2 * 4096**3 / seconds / (peak * 1e12) < 1
    assert found.arguments == 2 * 2 * 4096**2 and found.results == 2 * 4096**2


@pytest.mark.parametrize("name", CHIPS)
def test_memory_that_the_compiler_lets_a_program_have(name: str) -> None:
    device = ahead.devices(hardware(name))[0]
    assert device.device_kind == hardware(name).device_kind
    assert ahead.available(device) / 2**30 == pytest.approx(CHIPS[name][1], abs=0.005)


def test_a_scan_costs_as_much_more_as_it_has_more_trips() -> None:
    cfg, found = hardware("ironwood"), {}
    for length in (8, 16, 24):

        def stack(x, w, length=length):
            return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=length)[0]

        one = compiled(cfg, stack, (512, 512), (512, 512))
        assert [loop.trips for loop in one.estimate.loops] == [length]
        found[length] = in_all(one)
    assert found[24] - found[16] == found[16] - found[8] > 0.5 * found[8]


def test_an_array_gathered_over_the_two_devices_of_a_chip() -> None:
    """4 MiB of fp32, half of it on either device, each of which sends its half."""
    found = compiled(hardware("ironwood"), lambda x: x, (1024, 1024), spec=("x",), dtype=jnp.float32)
    (gathering,) = found.estimate.collectives
    assert (gathering.kind, gathering.devices, gathering.size, gathering.times) == ("all-gather", 2, 2**22, 1)
    assert gathering.sent == 2**21 and found.arguments == 2**21


def test_too_much_is_an_answer() -> None:
    with pytest.raises(ahead.OutOfMemory) as out:
        compiled(hardware("v5e"), lambda x: x * 2, (2**20, 2**14))
    assert out.value.memory == "hbm" and out.value.needed == 2 * 2**35
    assert out.value.available == pytest.approx(15.75 * 2**30)


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        (["hardware=h100"], ["libtpu compiles for TPUs only", "hardware=ironwood or v5e or v5p or v6e with --compile"]),
        (["hardware=tpu"], ["hardware=tpu", "names none"]),
        (["hardware=v6e", "hardware.chips=3"], ["hardware.chips=3", "in no slice"]),
        (["hardware=v5p", "hardware.topology=3x4x7"], ["hardware.topology=3x4x7", "describes no such topology"]),
        (
            ["hardware=ironwood", "hardware.topology=1x1x1", "hardware.devices=1", "train.global_batch=1"],
            ["hardware.devices=1", "is not the 2 devices of tpu7x:1x1x1"],
        ),
    ],
)
def test_what_nothing_can_be_compiled_for(overrides: list[str], texts: list[str]) -> None:
    batch = [] if any("train.global_batch" in each for each in overrides) else ["train.global_batch=840"]
    with pytest.raises(RequestError) as error:
        ahead.devices(compose([*overrides, *batch]).hardware)
    assert all(text in str(error.value) for text in texts), error.value


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r'pip install "olmo_hydra\[tpu\]"'):
        ahead.devices(hardware("v5e"))


def test_an_option_that_the_compiler_does_not_know() -> None:
    cfg = hardware("v5e", "+hardware.compiler_options.xla_tpu_no_such=1")
    with pytest.raises(RequestError, match="No such compile option"):
        compiled(cfg, lambda x: x, (8, 128))


def test_several_hosts() -> None:
    """64 chips of 16 hosts, whose devices lie side by side in the order of a run."""
    found = ahead.devices(compose(["hardware=ironwood", "hardware.topology=4x4x4", "train.global_batch=128"]).hardware)
    assert len(found) == 128 and len({device.process_index for device in found}) == 16
    assert [device.process_index for device in found] == sorted(device.process_index for device in found)
