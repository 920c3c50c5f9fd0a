"""Olmo 3 7B on eight devices of Ironwood, one instance of 8192 tokens each: what the compiler takes of their memory."""

import pytest

from olmo_hydra.cli.preflight_compile import answer
from olmo_hydra.config.compose import compose
from tests.components import require_libtpu


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "gigabytes"), [("full", 14.0)])
def test_temporaries(remat: str, gigabytes: float) -> None:
    require_libtpu()
    shape = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=8")
    found = answer(compose([*shape, f"hardware.remat={remat}"]))
    assert found["fits"] and found["memory"]["temporaries"] < gigabytes * 1e9
