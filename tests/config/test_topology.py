"""Chips, devices and processes from one another, with the slices that the vendor lists."""

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.topology import offered, usual

SEVEN_B = ("model=olmo3_7b", "train.global_batch=1024")


@pytest.mark.parametrize(
    ("hardware", "typed", "topology", "chips", "devices", "hosts"),
    [
        # docs.cloud.google.com/tpu/docs/tpu7x: two devices a chip, four chips a host
        ("ironwood", "", "2x2x1", 4, 8, 1),
        ("ironwood", "hardware.chips=1", "1x1x1", 1, 2, 1),
        ("ironwood", "hardware.devices=16", "2x2x2", 8, 16, 2),
        ("ironwood", "hardware.topology=4x4x4", "4x4x4", 64, 128, 16),
        ("ironwood", "hardware.chips=256", "4x8x8", 256, 512, 64),
        ("ironwood", "hardware.devices=1 hardware.mesh.fsdp=1", "1x1x1", 1, 1, 1),
        ("v5p", "hardware.chips=128", "4x4x8", 128, 128, 32),
        ("v5p", "hardware.topology=2x2x4", "2x2x4", 16, 16, 4),
        ("v6e", "", "2x2", 4, 4, 1),
        ("v6e", "hardware.chips=32", "4x8", 32, 32, 8),
        ("v5e", "hardware.chips=256", "16x16", 256, 256, 64),
        ("h100", "", None, 8, 8, 1),
        ("h200", "hardware.chips=16", None, 16, 16, 2),
        ("b300", "hardware.devices=1", None, 1, 1, 1),
        ("gpu", "", None, 1, 1, 1),
        ("tpu", "hardware.chips=8", "2x2x2", 8, 8, 1),
        # 54 devices have equal parts on 9 hosts, and not on the 7 that 27 chips fill
        ("ironwood", "hardware.topology=3x3x3 train.global_batch=54", "3x3x3", 27, 54, 9),
        # hosts are of one slice: three chips of four
        ("v5p", "hardware.slices=2 hardware.chips=6 hardware.mesh.data=2 train.global_batch=6", None, 6, 6, 2),
        ("v5p", "hardware.slices=4 hardware.topology=2x2x2 hardware.mesh.data=4", "2x2x2", 32, 32, 8),
        ("tpu", "hardware.slices=2 hardware.chips=2 hardware.mesh.data=2", "1x1x1", 2, 2, 2),
    ],
)
def test_one_number_gives_the_others(hardware, typed, topology, chips, devices, hosts) -> None:
    found = compose([*SEVEN_B, f"hardware={hardware}", *typed.split()]).hardware
    assert (found.topology, found.chips, found.devices, found.processes) == (topology, chips, devices, hosts)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("hardware.topology=4x4", ["hardware.topology=4x4:", "3 dimensions", "4x4x4", "hardware.chips=N"]),
        ("hardware.topology=4x4x0", ["hardware.topology=4x4x0", "3 dimensions"]),
        ("hardware.topology=cube", ["hardware.topology=cube", "3 dimensions"]),
        (
            "hardware.chips=4 hardware.devices=16",
            ["hardware.devices=16:", "not the 4 chips of hardware.chips=4", "null"],
        ),
        (
            "hardware.topology=2x2x2 hardware.chips=4",
            ["hardware.chips=4:", "not the 8 chips of hardware.topology=2x2x2"],
        ),
        ("hardware.chips=0", ["hardware.chips=0", "at least 1"]),
        ("hardware=v5e hardware.chips=512", ["hardware.topology=16x32", "hardware=v5e, 16x16", "hardware.slices=2"]),
        ("hardware=v6e hardware.topology=8x32", ["hardware.topology=8x32", "hardware=v6e, 16x16"]),
        ("hardware=v5p hardware.chips=8192", ["hardware.topology=16x16x32", "hardware=v5p, 16x16x24"]),
        ("hardware.chip.devices=0", ["hardware.chip.devices=0", "at least 1"]),
        ("hardware.chip.largest=16", ["hardware.chip.largest=16", "3 dimensions"]),
        ("hardware.chip.torus=1", ["hardware.chip.torus=1", "2 or 3, or 0"]),
        ("hardware.chip.link_gbps=-1", ["hardware.chip.link_gbps=-1", "positive, or null"]),
        ("hardware=h100 hardware.topology=2x2x2", ["hardware.topology=2x2x2", "hardware=h100 has no torus", "chips=N"]),
    ],
)
def test_what_contradicts_itself_is_refused(typed: str, parts: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        compose([*SEVEN_B, "hardware=ironwood", *typed.split()])
    assert all(part in str(refused.value) for part in parts), refused.value


def test_slices_that_are_offered() -> None:
    """The tables of docs.cloud.google.com/tpu/docs: tpu7x and v5p, v6e and v5e."""
    three = "1x1x1 - 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"
    two = "1x1 - 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
    for dims, shapes in ((3, three), (2, two)):
        assert [usual(1 << n, dims) or "-" for n in range(len(shapes.split()))] == shapes.split()
    assert usual(3, 3) is None and usual(12, 2) is None and usual(8, 0) is None


def test_the_next_slice_that_is_offered() -> None:
    """One chip, one host of four, and powers of two from there."""
    assert [offered(chips) for chips in (1, 2, 4, 5, 8, 65)] == [1, 4, 4, 8, 8, 128]
    assert all(usual(offered(chips), 3) for chips in range(1, 70))
