"""The bound on speed: counted by hand, against the kernel's own table of blocks, and against what was published."""

import numpy as np
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.hardware import splash_block, splash_query_block
from olmo_hydra.config.mesh import halo
from olmo_hydra.config.model import Attention
from olmo_hydra.hardware.flops import train_flops_per_token
from olmo_hydra.hardware.memory import others_keys_bytes
from olmo_hydra.hardware.roofline import Bound, Part, Rates, bound, computed_pairs, parts, rates
from olmo_hydra.model.kernels.splash import make_kernel

LAUNCHED = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=512")

LAYERS, HEAD = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 4096 * 100352  # weights of 7B; the table has as many as the head


def by_name(*overrides: str) -> dict[str, Part]:
    return {part.name: part for part in parts(compose(overrides))}


def test_without_recomputation_products_are_those_of_the_model() -> None:
    config = compose([*LAUNCHED, "hardware.remat=none", "hardware.attention_block=128", "hardware.devices=8"])
    tokens = 512 * 8192 // 8
    found = {part.name: part for part in parts(config)}
    products = sum(found[name].flops for name in ("projections", "mlp", "head"))
    assert products == 6 * tokens * (config.model.num_params_without_input_table - config.model.num_norm_params)
    exact = train_flops_per_token(config.model, 8192) * tokens - products
    assert found["attention"].flops == pytest.approx(exact * (1 + 3.5) / 3, rel=0.03)  # two kernels backward; blocks
    again = by_name(*LAUNCHED, "hardware.attention_block=128", "hardware.devices=8")
    assert again["mlp"].flops == pytest.approx(found["mlp"].flops * 4 / 3)
    assert again["head"] == found["head"]


@pytest.mark.parametrize("window", [None, 100, 128, 1000, 4096])
@pytest.mark.parametrize(("seq_len", "block"), [(1024, 256), (1024, 1024), (2048, None), (900, 512)])
def test_pairs_are_those_of_the_blocks_that_splash_computes(
    seq_len: int, block: int | None, window: int | None
) -> None:
    typed = () if block is None else (f"hardware.attention_block={block}",)
    hardware = compose([*LAUNCHED, f"data.seq_len={seq_len}", "hardware.attention_block=null", *typed]).hardware
    length, size = splash_block(seq_len, block)
    seen = None if window is None or window >= length else window
    kernel = make_kernel(heads=1, queries=seq_len, keys=seq_len, shards=1, window=seen, block=block, interpret=True)
    blocks = np.count_nonzero(kernel.fwd_mask_info.block_mask)
    assert computed_pairs(hardware, seq_len, window) == blocks * size**2


@pytest.mark.parametrize("window", [None, 100, 512, 900])
@pytest.mark.parametrize(("context", "block"), [(2, 128), (4, 256), (8, 512)])
def test_pairs_of_the_busiest_device_are_those_of_its_kernel(context: int, block: int, window: int | None) -> None:
    mesh = (f"hardware.devices={context}", f"hardware.mesh.context={context}", f"hardware.attention_block={block}")
    hardware = compose([*LAUNCHED, "data.seq_len=2048", *mesh]).hardware
    before = halo(2048, window)
    queries, shards = 2048 // context, context if before is None else 1
    shape = {"queries": queries, "keys": 2048 if before is None else queries + before, "shards": shards}
    kernel = make_kernel(heads=1, **shape, window=window, block=block, interpret=True)
    blocks = np.count_nonzero(kernel.fwd_mask_info.block_mask.reshape(shards, -1), axis=1).max()
    size_q = splash_query_block(queries, shards, block)[1]
    assert computed_pairs(hardware, 2048, window) == context * blocks * size_q * splash_block(shape["keys"], block)[1]


def test_what_context_and_slices_send_by_hand() -> None:
    """Two slices of 2 x 2 devices, one instance of 1024 tokens a device: three sliding layers of four."""
    shape = ("model=olmo3_7b", "model.window=256", "hardware=v5p", "data.seq_len=1024", "train.global_batch=4")
    mesh = ("hardware.slices=2", "hardware.devices=8", "hardware.mesh.data=2", "hardware.mesh.context=2")
    config = compose([*shape, *mesh])
    found = {part.name: part for part in parts(config)}
    a_pass = 24 * 2 * 255 * 4096 + 8 * (2 * 512 * 4096 + 512 * 4096)  # halos; keys, values; half queries and results
    assert found["exchange context"].sent == 3 * 2 * a_pass  # forward, again and backward, in two bytes
    keys_and_values = 2 * 32 * 128 * 2
    assert others_keys_bytes(config, Attention.sliding) == 255 * keys_and_values
    assert others_keys_bytes(config, Attention.full) == 512 * keys_and_values
    assert found["sum gradients"].sent == (LAYERS * 2 + 2 * HEAD * 4) / 2  # over context, within a slice
    assert found["sum over slices"].crossing == (LAYERS * 2 + 2 * HEAD * 4) / 2 / 2  # by both along context together
    assert (
        by_name(*shape, "hardware.devices=8", "hardware.mesh.data=2", "hardware.mesh.context=2")["mlp"] == found["mlp"]
    )
    assert rates(config.hardware).network == 6.25e9


def test_what_is_sent_by_hand() -> None:
    """Over 4, three quarters: of layers 2 bytes a weight, gathered twice and scattered once in each of 2 micro-batches;
    the head gathered once in each, its gradient scattered once, in 4 bytes; of the table only what is looked up."""
    shape = ("model=olmo3_7b", "hardware=v5p", "data.seq_len=1024", "hardware.micro_batch=1", "train.global_batch=8")
    found = by_name(*shape, "hardware.devices=8", "hardware.mesh.fsdp=4", "hardware.mesh.tensor=2")
    assert found["gather weights"].sent == 2 * (2 * LAYERS / 2 + HEAD / 2) * 2 * 3 / 4
    assert found["scatter gradients"].sent == (2 * LAYERS / 2 * 2 + HEAD / 2 * 4) * 3 / 4
    assert found["exchange lookup"].sent == 2 * (2 * 1024 * 4096) * 2 * 3 / 4  # of two instances, to and fro
    # Six sums a layer with recomputation, each [2 x 1024, 4096] in two bytes, half of it twice.
    assert found["sum activations"].sent == 6 * 32 * (2 * 1024 * 4096 * 2)
    assert "sum gradients" not in found
    data = by_name(
        *shape, "train.global_batch=16", "hardware.devices=8", "hardware.mesh.data=2", "hardware.mesh.fsdp=4"
    )
    assert data["sum gradients"].sent == (2 * LAYERS * 2 + 2 * HEAD * 4) / 4  # in each of two micro-batches


def test_a_width_that_does_not_divide_is_summed_and_never_gathered() -> None:
    """4096 over 3: every device has all weights, and sends two thirds of their gradients twice."""
    found = by_name("model=olmo3_7b", "hardware=v5p", "hardware.chips=3", "train.global_batch=3", "data.seq_len=1024")
    assert not {"gather weights", "scatter gradients", "exchange lookup"} & set(found)
    assert found["sum gradients"].sent == pytest.approx(2 * (LAYERS * 2 + 2 * HEAD * 4) * 2 / 3)


def test_heads_that_fill_half_of_the_matrix_unit() -> None:
    narrow, wide = by_name(*LAUNCHED), by_name(*LAUNCHED, "model.head_dim=256")
    assert (narrow["attention"].fill, wide["attention"].fill) == (0.5, 1.0)
    assert narrow["attention"].flops == wide["attention"].flops
    assert by_name(*LAUNCHED, "hardware=v5p")["attention"].fill == 1.0  # its unit is 128 wide
    assert by_name(*LAUNCHED, "model.d_ff=11000")["mlp"].fill == pytest.approx(11000 / 11008)


def test_rates_are_of_a_device() -> None:
    assert rates(compose(LAUNCHED).hardware) == Rates(
        1153.5e12, 3690e9, 300e9, 6.25e9
    )  # half of a chip, half of both ways
    assert rates(compose([*LAUNCHED, "hardware=h100", "hardware.chips=8"]).hardware).links == 450e9
    assert rates(compose(["hardware=cpu"]).hardware) == Rates(None, None, None)


def test_switched_chips_leave_a_host_by_their_own_ports() -> None:
    """64 GPUs, eight a host, 450 GB/s inside and a port of 50 each. Parts of one host are gathered inside it; copies of
    a part lie one a host, so that each device sends what it sends by its own port; a ring over all 64 enters a host
    once, by eight ports."""
    shape = ("model=olmo3_7b", "hardware=h100", "hardware.chips=64", "data.seq_len=8192", "train.global_batch=128")
    hybrid = by_name(*shape, "hardware.mesh.data=8", "hardware.mesh.fsdp=8")
    machine = rates(compose(shape).hardware)
    assert (machine.links, machine.network) == (450e9, 50e9)
    assert hybrid["gather weights"].crossing == 0
    summed = hybrid["sum gradients"]
    assert summed.crossing == summed.sent and machine.seconds(summed) == (summed.sent / 50e9, "network")
    for one in (
        by_name(*shape)["gather weights"],
        by_name(*shape, "hardware.mesh.fsdp=1", "hardware.mesh.data=64")["sum gradients"],
    ):
        assert machine.seconds(one) == (one.sent / 400e9, "network")
    tensor = by_name(*shape, "hardware.mesh.tensor=2", "hardware.mesh.fsdp=4", "hardware.mesh.data=8")
    assert tensor["sum activations"].crossing == tensor["gather weights"].crossing == 0
    assert tensor["sum gradients"].crossing == tensor["sum gradients"].sent


def test_a_part_takes_as_long_as_its_slowest_resource() -> None:
    machine = Rates(100.0, 10.0, 1.0)
    assert machine.seconds(Part("a", flops=200, moved=10)) == (2.0, "arithmetic")
    assert machine.seconds(Part("a", flops=200, moved=10, fill=0.5)) == (4.0, "arithmetic")
    assert machine.seconds(Part("a", flops=200, moved=30)) == (3.0, "memory")
    found = [Part("a", flops=200), Part("b", moved=30), Part("c", sent=4)]
    assert bound(found, machine) == Bound(computing=5.0, sending=4.0)
    assert Bound(5.0, 4.0).overlapped == 5.0 and Bound(5.0, 4.0).in_turns == 9.0
    assert bound(found, Rates(100.0, 10.0, None)) is None


def test_no_published_run_is_faster() -> None:
    """AI-Hypercomputer/maxtext's Olmo launcher says 44.5 % on Ironwood: 43.4 by window-exact FLOPs."""
    config = compose([*LAUNCHED, "hardware.topology=4x8x8", "hardware.remat=none"])
    found = bound(parts(config), rates(config.hardware))
    assert found is not None and config.hardware.devices is not None
    ideal = train_flops_per_token(config.model, 8192) * 512 * 8192 / config.hardware.devices / 1153.5e12
    assert 0.434 < ideal / found.overlapped < 1
