"""The models of the zoo, scaled down, on every mesh of eight devices: the losses and gradients of one device.

How query heads are grouped, the pattern of layers, norms and stretched rotations are the model's; the rest is as small
as eight devices take.
"""

from itertools import product
from math import prod

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.config.paths import CONF
from tests.train.meshes import ONE, Overrides, Shape, assert_agree, two_updates

MESHES = [shape for shape in product((1, 2, 4, 8), repeat=4) if prod(shape) == 8]
SMALL = (
    *("model.d_model=32", "model.head_dim=4", "model.n_kv_heads=8", "model.n_layers=4", "model.d_ff=32"),
    *("model.window=8", "model.vocab_size=257", "model.vocab_multiple=8", "model.compute_dtype=float32"),
    *("data.document_mask=true", "optim=adamw", "optim.eps=1e-2", "optim.clip_norm=null", "hardware.micro_batch=null"),
)
STRETCHED = ("model.yarn_factor=8", "model.yarn_original_len=8", "model.yarn_beta_fast=4")
FAMILIES: dict[str, Overrides] = {
    "one query head a group": ("model=olmo3_7b", *SMALL, "model.n_heads=8"),
    "five query heads a group": ("model=olmo3_32b", *SMALL, "model.n_heads=40"),
    "stretched": ("model=olmo3_32b", *SMALL, "model.n_heads=40", *STRETCHED),
}


def structure(cfg: ModelConfig) -> tuple[object, ...]:
    """In what models differ once they are small."""
    assert cfg.n_heads is not None and cfg.n_kv_heads is not None
    return (
        cfg.n_heads // cfg.n_kv_heads,
        tuple(cfg.window_pattern),
        cfg.qk_norm,
        cfg.block_norm,
        cfg.yarn_factor is None,
    )


def test_every_model_of_the_zoo_is_of_a_family() -> None:
    families = {structure(compose(list(family)).model) for family in FAMILIES.values()}
    for file in (CONF / "model").glob("*.yaml"):
        assert structure(compose([f"model={file.stem}"]).model) in families, f"{file.stem}: a family of its own"


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("stretched", (1, 2, 2, 2)),
        *(
            pytest.param(family, shape, marks=pytest.mark.slow)
            for family in FAMILIES
            for shape in MESHES
            if (family, shape) != ("stretched", (1, 2, 2, 2))
        ),
    ],
    ids=str,
)
def test_two_updates_equal_those_of_one_device(family: str, shape: Shape) -> None:
    assert_agree(two_updates(shape, FAMILIES[family]), two_updates(ONE, FAMILIES[family]))
