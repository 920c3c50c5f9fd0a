"""The search for the smallest change, with the compiler replaced by a rule."""

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.remat import Remat
from olmo_hydra.hardware.activations import needed_by_part
from olmo_hydra.hardware.fit import in_hbm, in_vmem, smallest_change

RUN = ("model=olmo3_7b", "hardware=v5p", "hardware.chips=4", "data.seq_len=1024", "hardware.micro_batch=null")


@pytest.mark.parametrize("sums", [0, 2, 11, 20])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 6, 9, 12, 15, 100])
def test_the_least_recomputation_and_then_the_largest_micro_batch(most: int, sums: int) -> None:
    """A rule for every bound: full recomputation has room for `most` instances, a policy before it for one less; a sum
    of gradients takes as much as `sums` instances."""
    config = compose([*RUN, "train.global_batch=48", "hardware.remat=none"])  # 12 instances a device
    policies, asked = list(Remat), []

    def fits(remat: Remat, size: int) -> bool:
        asked.append((remat, size))
        return size + (sums if size < 12 else 0) <= most - (len(policies) - 1 - policies.index(remat))

    sizes = [1, 2, 3, 4, 6, 12]
    possible = [(remat, size) for remat in policies for size in reversed(sizes) if fits(remat, size)]
    asked.clear()
    assert smallest_change(config, fits) == next(iter(possible), None)
    assert len(set(asked)) == len(asked) <= 2 * len(policies) + 3


@pytest.mark.parametrize("typed", ["hardware.micro_batch=null", "hardware.micro_batch=1"])
def test_one_micro_batch_can_fit_where_smaller_ones_do_not(typed: str) -> None:
    """7B on 4 chips of v6e, two instances of 1024 tokens a device. A kept point is 2048 x 4096 x 2 bytes in 32 layers,
    half a GiB: 28.93 GiB with the layers' inputs alone, and 6.8 more for a sum of gradients. 31.24 have four points."""
    run = ("model=olmo3_7b", "hardware=v6e", "data.seq_len=1024", "train.global_batch=8", "optim.mu_dtype=bfloat16")

    def needed(remat: Remat, size: int) -> float:
        config = compose([*run, f"hardware.remat={remat.value}", f"hardware.micro_batch={size}"])
        return sum(needed_by_part(config).values()) / 2**30

    assert needed(Remat.full, 2) == pytest.approx(28.93, abs=0.005)
    assert needed(Remat.full, 1) == pytest.approx(35.17, abs=0.005)
    config = compose([*run, "hardware.remat=none", typed])
    found = smallest_change(config, lambda remat, size: needed(remat, size) < 31.24)
    assert found == (Remat.save_dot_except_mlp, 2) and needed(*found) == pytest.approx(28.93 + 4 / 2, abs=0.005)


def test_a_policy_that_recomputes_less_than_the_config_is_no_change_for_less_memory() -> None:
    config = compose([*RUN, "train.global_batch=48", "hardware.remat=full", "hardware.micro_batch=4"])
    asked = []
    assert smallest_change(config, lambda remat, size: bool(asked.append((remat, size)))) is None
    assert asked == [(Remat.full, 12), (Remat.full, 1)]


MORE_CHIPS = "hardware.devices=null hardware.topology=null hardware.processes=null hardware.mesh"


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        # A sum of gradients takes more than an instance less leaves free; all of a share at once needs none.
        ("hardware=v6e train.global_batch=8 hardware.micro_batch=null", f"hardware.chips=8 {MORE_CHIPS}.fsdp=8"),
        ("hardware=v6e train.global_batch=8 optim.mu_dtype=bfloat16", "hardware.micro_batch=2"),
        (
            "hardware=v6e hardware.chips=8 data.seq_len=8192 train.global_batch=8 hardware.loss_chunk=null",
            "hardware.loss_chunk=1024",
        ),
        (
            "hardware=v6e hardware.devices=4 hardware.remat=none train.global_batch=48 hardware.micro_batch=null",
            f"hardware.chips=16 {MORE_CHIPS}.fsdp=16",  # 26.8 of 32 GiB; one instance at once takes 43.3
        ),
        # The next policy, and not `minimal`, which keeps `up` for `context`: more.
        (
            "hardware=v5p hardware.remat=minimal_with_context_except_up train.global_batch=96",
            "hardware.remat=save_dot_with_context_except_mlp",
        ),
        # Copies of parameters in each slice, but no more than one.
        (
            "hardware=v6e hardware.slices=2 hardware.mesh.data=4 train.global_batch=8",
            "hardware.mesh.data=2 hardware.mesh.fsdp=4",
        ),
        # No instances for more devices; 8 take a little too much.
        ("hardware=v5e train.global_batch=4", f"hardware.chips=16 {MORE_CHIPS}.tensor=4"),
        # Slices have 1, 4, 8, ... chips, and 4096 divides by 8.
        ("hardware=v6e hardware.chips=3 train.global_batch=24", f"hardware.chips=8 {MORE_CHIPS}.fsdp=8"),
        ("hardware=v6e hardware.chips=1 train.global_batch=4", f"hardware.chips=4 {MORE_CHIPS}.fsdp=4"),
        ("hardware=h100 hardware.chips=1 train.global_batch=1", f"hardware.chips=2 {MORE_CHIPS}.tensor=2"),
    ],
)
def test_the_first_change_lowers_the_need_and_can_be_typed(typed: str, first: str) -> None:
    run = ["model=olmo3_7b", "data.seq_len=1024", *typed.split()]
    before, changes = compose(run), in_hbm(compose(run))
    assert changes[0] == first
    for change in changes:
        after = compose([*run, *change.split()])
        assert sum(needed_by_part(after).values()) < sum(needed_by_part(before).values())


def test_what_a_kernel_needs_can_be_typed() -> None:
    ironwood = ["model=olmo3_7b", "hardware=ironwood", "train.global_batch=8"]
    block, limit = in_vmem(compose(ironwood), 39 * 2**20 + 1)
    assert compose([*ironwood, block]).hardware.attention_block == 1024
    option = "xla_tpu_scoped_vmem_limit_kib"
    assert compose([*ironwood, limit]).hardware.compiler_options[option] == str(40 * 1024)
    (added,) = in_vmem(compose([*RUN, "train.global_batch=48"]), 2**25)
    assert compose([*RUN, "train.global_batch=48", added]).hardware.compiler_options == {option: str(32 * 1024)}
