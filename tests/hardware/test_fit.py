"""The search for the smallest change, with the compiler replaced by a rule."""

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.remat import Remat
from olmo_hydra.hardware.fit import in_hbm, in_vmem, smallest_change

RUN = ("model=olmo3_7b", "hardware=v5p", "hardware.chips=4", "data.seq_len=1024", "hardware.micro_batch=null")


@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 6, 9, 12, 100])
def test_the_least_recomputation_and_then_the_largest_micro_batch(most: int) -> None:
    """A rule for every bound: full recomputation has room for `most` instances, a policy before it for one less."""
    config = compose([*RUN, "train.global_batch=48", "hardware.remat=none"])  # 12 instances a device
    policies, asked = list(Remat), []

    def fits(remat: Remat, size: int) -> bool:
        asked.append((remat, size))
        return size <= most - (len(policies) - 1 - policies.index(remat))

    sizes = [1, 2, 3, 4, 6, 12]
    possible = [(remat, size) for remat in policies for size in reversed(sizes) if fits(remat, size)]
    asked.clear()
    assert smallest_change(config, fits) == next(iter(possible), None)
    assert len(set(asked)) == len(asked) <= len(policies) + 3


def test_a_policy_that_recomputes_less_than_the_config_is_no_change_for_less_memory() -> None:
    config = compose([*RUN, "train.global_batch=48", "hardware.remat=full", "hardware.micro_batch=4"])
    asked = []
    assert smallest_change(config, lambda remat, size: bool(asked.append((remat, size)))) is None
    assert asked == [(Remat.full, 1)]


def test_what_to_type_can_be_typed() -> None:
    typed = [*RUN, "train.global_batch=48", "hardware.remat=none", "hardware.mesh.data=2"]
    changes = in_hbm(compose(typed))
    assert changes[0] == "hardware.micro_batch=6" and changes[2] == "hardware.mesh.data=1 hardware.mesh.fsdp=4"
    for change in changes:
        compose([*typed, *change.split()])
    ironwood = ["model=olmo3_7b", "hardware=ironwood", "train.global_batch=8"]
    block, limit = in_vmem(compose(ironwood), 39 * 2**20 + 1)
    assert compose([*ironwood, block]).hardware.attention_block == 1024
    option = "xla_tpu_scoped_vmem_limit_kib"
    assert compose([*ironwood, limit]).hardware.compiler_options[option] == str(40 * 1024)
    (added,) = in_vmem(compose([*RUN, "train.global_batch=48"]), 2**25)
    assert compose([*RUN, "train.global_batch=48", added]).hardware.compiler_options == {option: str(32 * 1024)}
