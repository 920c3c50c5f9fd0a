"""Olmo 3 7B on eight devices of Ironwood, one instance of 8192 tokens each: what the compiler takes of their memory."""

import pytest

from olmo_hydra.cli.preflight_compile import answer
from olmo_hydra.config.compose import compose
from olmo_hydra.hardware import ahead
from tests.components import require_libtpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remat", "offload", "gigabytes"),
    [("full", "[]", 14.0), ("minimal_with_context_except_up", "[q,k,v,context,out,down]", 24.0)],
)
def test_temporaries(remat: str, offload: str, gigabytes: float) -> None:
    require_libtpu()
    shape = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=8")
    config = compose([*shape, f"hardware.remat={remat}", f"hardware.offload={offload}"])
    found = answer(config, ahead.devices(config.hardware))
    assert found["fits"] and found["memory"]["temporaries"] < gigabytes * 1e9
