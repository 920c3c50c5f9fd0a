"""Each piece of advice comes where it is due, and goes where it was taken."""

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.advice import advice

SEVEN_B = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=512")
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
            "GiB, as kept by layers",
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


def test_a_run_that_fills_its_hardware_needs_none() -> None:
    assert advice(compose(["hardware=cpu"])) == []
    settled = ("model.head_dim=256", "optim.mu_dtype=bfloat16", *WHOLE_BLOCKS)
    assert advice(compose([*SEVEN_B, *settled])) == []
