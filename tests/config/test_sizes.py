"""Every size of Olmo 3 has the parameters of the reference: by the config's arithmetic, and as the model is built."""

import json
import math
import subprocess
import sys

import jax
import pytest
from flax import nnx

from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import compose
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.config.paths import CONF
from olmo_hydra.config.remat import Remat
from olmo_hydra.hardware.flops import train_flops_per_token
from olmo_hydra.model import decoder

# d, layers, heads, kv heads, head dim, FFN, full-attention layers, parameters, parameters without the input table:
# ai2-olmo-core 3.0.0, TransformerConfig.olmo3_* with 100,352 rows, num_params and num_non_embedding_params.
TABLE = {
    "1m": (12, 4, 4, 4, 4, 256, 1, 2_448_620, 1_244_396),
    "14m": (128, 4, 8, 8, 16, 512, 1, 26_740_864, 13_895_808),
    "30m": (256, 4, 8, 8, 32, 768, 1, 54_792_448, 29_102_336),
    "60m": (384, 8, 8, 8, 48, 1536, 2, 95_957_376, 57_422_208),
    "100m": (512, 12, 8, 8, 64, 2048, 3, 153_117_184, 101_736_960),
    "190m": (768, 12, 12, 12, 64, 3072, 3, 267_424_512, 190_354_176),
    "370m": (1024, 16, 16, 16, 64, 4096, 4, 474_022_912, 371_262_464),
    "600m": (1280, 16, 16, 16, 80, 5120, 4, 676_414_720, 547_964_160),
    "760m": (1536, 16, 16, 16, 96, 6144, 4, 912_360_960, 758_220_288),
    "1b": (2048, 16, 16, 16, 128, 8192, 4, 1_484_916_736, 1_279_395_840),
    "3b": (3328, 16, 16, 16, 208, 13312, 4, 3_503_508_736, 3_169_537_280),
    "7b": (4096, 32, 32, 32, 128, 11008, 8, 7_298_617_344, 6_887_575_552),
    "13b": (5120, 40, 40, 40, 128, 13824, 10, 13_716_198_400, 13_202_396_160),
    "32b": (5120, 64, 40, 8, 128, 27648, 16, 32_234_279_936, 31_720_477_696),
}


def built(model: ModelConfig) -> decoder.Decoder:
    return decoder.build(model, rngs=nnx.Rngs(0), layer_loop=LayerLoop.scan, remat=Remat.none)


def count(module: nnx.Module) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


@pytest.mark.parametrize("size", TABLE)
def test_size(size: str) -> None:
    d, layers, heads, kv, head_dim, ffn, _, parameters, without_table = TABLE[size]
    model = compose([f"model=olmo3_{size}"]).model
    assert (model.d_model, model.n_layers, model.n_heads, model.n_kv_heads) == (d, layers, heads, kv)
    assert (model.head_dim, model.d_ff, model.padded_vocab) == (head_dim, ffn, 100_352)
    assert model.num_params == parameters and model.num_params - d * 100_352 == without_table
    assert count(nnx.eval_shape(lambda: built(model))) == parameters

    unpadded = compose([f"model=olmo3_{size}", "model.vocab_multiple=1"]).model
    q, k = heads * head_dim, kv * head_dim
    layer = 2 * d * q + 2 * d * k + q + k + 2 * d + 3 * d * ffn
    assert unpadded.num_params == 2 * 100_278 * d + d + layers * layer


def test_seven_billion_without_padding() -> None:
    assert compose(["model=olmo3_7b", "model.vocab_multiple=1"]).model.num_params == 7_298_011_136


def test_the_smallest_one_built() -> None:
    model = compose(["model=olmo3_1m"]).model
    assert count(built(model)) == TABLE["1m"][7]


def test_wide_heads_cost_the_same() -> None:
    narrow, wide = (compose(["model=olmo3_7b", f"model.head_dim={width}"]).model for width in (128, 256))
    assert (narrow.n_heads, wide.n_heads) == (32, 16)
    assert narrow.num_params == wide.num_params == TABLE["7b"][7]
    for exact in (True, False):
        assert train_flops_per_token(narrow, 8192, window_exact=exact) == train_flops_per_token(
            wide, 8192, window_exact=exact
        )


def test_table_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {path.stem for path in (CONF / "model").glob("*.yaml")}
    for size, expected in TABLE.items():
        row = rows[f"olmo3_{size}"]
        keys = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "full_attention_layers")
        assert tuple(row[key] for key in (*keys, "parameters", "parameters_without_input_table")) == expected

    assert main(["models"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["olmo3_32b"].split()[1:5] == ["5120", "64", "16", "40/8"]
    assert lines["olmo3_32b"].split()[-2:] == ["32,234,279,936", "31,720,477,696"]  # whole, in any terminal


def test_table_of_models_imports_no_jax() -> None:
    program = "import sys; from olmo_hydra.cli.main import main; main(['models']); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CONF.parent)
    assert done.returncode == 0, done.stderr
