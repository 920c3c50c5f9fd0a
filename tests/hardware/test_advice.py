"""Each piece of advice comes where it is due, and goes where it was taken."""

import re

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.activations import needed_by_part
from olmo_hydra.hardware.advice import advice

SEVEN_B = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=512")
OVERRIDE = re.compile(r"\b(?:hardware|model|optim)\.[a-z_.]+=[a-z0-9]\w*")
WHOLE_BLOCKS = ("hardware.attention_block=128",)


@pytest.mark.parametrize(
    ("due", "finding", "taken"),
    [
        ((), "heads of 128 fill 50% of the 256 wide matrix unit", ("model.head_dim=256",)),
        ((), "33% of the logits of a sliding layer are masked", WHOLE_BLOCKS),
        ((), "20% of the logits of a full layer are masked", WHOLE_BLOCKS),
        (("model.d_ff=11000",), "model.d_ff = 11000 is no multiple", ("model.d_ff=11008",)),
        (("model.d_ff=11000",), "last columns are 97% full", ("model.d_ff=11008",)),
        (("model.vocab_multiple=1",), "100,278 columns of the head", ("model.vocab_multiple=256",)),
        (("hardware.chips=3", "train.global_batch=510"), "3 chips are in no slice", ("hardware.chips=4",)),
        (
            ("hardware.chips=3", "train.global_batch=510"),
            "does not divide by hardware.mesh.fsdp=6",
            ("hardware.chips=4",),
        ),
        (("hardware=v6e", "hardware.chips=1"), "parameters and moments take 81.6 GiB of the 32", ("hardware.chips=4",)),
        (
            ("hardware.chips=4", "hardware.micro_batch=16", "hardware.remat=none"),
            "GiB, is kept by layers",
            ("hardware.micro_batch=1", "hardware.remat=full"),
        ),
        (("hardware.micro_batch=3",), "2 instances of a device's 64 at once, as 3 do not", ("hardware.micro_batch=4",)),
        (("hardware=h200",), "attention by XLA has all logits", ("hardware.attention=cudnn",)),
        ((), "the first moment in float32 takes 3.4 GiB", ("optim.mu_dtype=bfloat16",)),
    ],
)
def test_advice_is_given_and_can_be_taken(due: tuple[str, ...], finding: str, taken: tuple[str, ...]) -> None:
    before, after = (advice(compose([*SEVEN_B, *due, *more])) for more in ((), (*taken, "train.global_batch=512")))
    assert any(finding in each.finding for each in before), before
    assert not any(finding in each.finding for each in after), after


@pytest.mark.parametrize(
    "due",
    [
        ("hardware=v6e", "hardware.slices=2", "hardware.mesh.data=2", "train.global_batch=8"),
        ("hardware=v6e", "hardware.slices=2", "hardware.mesh.data=4", "train.global_batch=8", "data.seq_len=1024"),
        ("hardware=v6e", "hardware.devices=4", "train.global_batch=4"),
        (
            "hardware=v6e",
            "hardware.topology=2x2",
            "hardware.processes=1",
            "hardware.mesh.data=-1",
            "hardware.mesh.fsdp=2",
        ),
        ("hardware=v6e", "hardware.mesh.fsdp=1", "hardware.mesh.tensor=4", "hardware.remat=none"),
        ("hardware=v6e", "train.global_batch=8", "optim.mu_dtype=bfloat16", "data.seq_len=1024"),
        ("hardware=v5e", "train.global_batch=4", "data.seq_len=1024"),
        ("hardware=h200", "hardware.chips=1", "train.global_batch=1", "hardware.remat=none"),
        ("hardware.devices=1", "hardware.mesh.fsdp=1", "hardware.loss_chunk=null", "hardware.remat=none"),
        ("model=olmo3_32b", "hardware.chips=1", "model.d_ff=27000"),
        ("model=olmo3_32b", "hardware=v5p", "hardware.mesh.context=4", "hardware.attention_block=1024"),
    ],
    ids=" ".join,
)
def test_what_is_printed_can_be_typed(due: tuple[str, ...]) -> None:
    config = compose([*SEVEN_B, *due])
    found = advice(config)
    for each in found:
        if typed := OVERRIDE.findall(each.instead):
            changed = compose([*SEVEN_B, *due, *typed])
            if "GiB of a device" in each.finding:
                assert sum(needed_by_part(changed).values()) < sum(needed_by_part(config).values())
    assert any("GiB of a device" in each.finding and OVERRIDE.search(each.instead) for each in found)


def test_blocks_are_those_that_are_computed_and_those_to_type_divide() -> None:
    """Of 1920 positions, 15 x 128: blocks of 384 where up to 512 may be; only 128 is smaller and divides."""
    run = ("model=olmo3_7b", "hardware=v5p", "data.seq_len=1920", "train.global_batch=4", "model.window_pattern=[full]")
    (found,) = (each for each in advice(compose(run)) if "masked" in each.finding)
    computed = 384**2 * (1 + 2 + 3 + 4 + 5)
    assert found.finding.startswith(f"{1 - 1920 * 1921 / 2 / computed:.0%} of the logits of a full layer")
    assert found.finding.endswith("within blocks of 384 queries and 384 keys")
    assert found.instead.startswith("hardware.attention_block=128 ")


def test_fewer_heads_keep_their_groups_of_queries() -> None:
    """32B has 8 heads of keys: 4 of twice the width divide 20 heads of queries, 8 do not."""
    found = advice(compose([*SEVEN_B, "model=olmo3_32b"]))
    (wider,) = (each.instead for each in found if "matrix unit in attention" in each.finding)
    before, after = (compose([*SEVEN_B, "model=olmo3_32b", *more]).model for more in ((), OVERRIDE.findall(wider)))
    assert (after.n_heads, after.n_kv_heads, after.head_dim) == (20, 4, 256)
    assert before.num_params - before.num_norm_params == after.num_params - after.num_norm_params


def test_a_run_that_fills_its_hardware_needs_none() -> None:
    assert advice(compose(["hardware=cpu"])) == []
    settled = ("model.head_dim=256", "optim.mu_dtype=bfloat16", *WHOLE_BLOCKS)
    assert advice(compose([*SEVEN_B, *settled])) == []
