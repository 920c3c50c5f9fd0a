"""Folders made by transformers, and ours loaded by it. Equal logits of the two implementations: `test_parity.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.hf_rope import write_rope
from olmo_hydra.interop.model_node import olmo3
from olmo_hydra.model import rope
from tests.interop.conftest import FULL, PLAIN_ROPE, SLIDING, YARN, YARN_ROPE

GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "num_hidden_layers": 5}
KINDS = {"layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING], "sliding_window": 7, "rms_norm_eps": 1e-5}
THETA = {"rope_parameters": {kind: {**PLAIN_ROPE, "rope_theta": 1e4} for kind in (FULL, SLIDING)}}
# In the words of 4.57 as well, which knows no others.
BOTH = YARN | {"rope_theta": 5e5, "rope_scaling": {k: v for k, v in YARN_ROPE.items() if k != "rope_theta"}}


def there_and_back(source: Path, tmp_path: Path, *options: str) -> Path:
    back = tmp_path / "back"
    assert main(["convert", "from-hf", str(source), str(tmp_path / "run")]) == 0
    assert main(["convert", "to-hf", str(tmp_path / "run"), str(back), *options]) == 0
    return back


def state(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def logits(model: Any) -> Any:
    import torch

    ids = torch.from_numpy(np.random.default_rng(0).integers(0, model.config.vocab_size, (2, 60)))
    with torch.no_grad():
        return model(ids).logits.float()


@pytest.mark.parametrize("changes", [BOTH, GROUPED | KINDS | THETA], ids=["yarn", "grouped"])
def test_a_round_trip_is_bit_identical_and_loads(hf_model, transformers, changes, tmp_path) -> None:
    import torch

    model, _ = hf_model(1, **changes)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("model-*"))) > 3
    back = there_and_back(tmp_path / "sharded", tmp_path)
    one, other = state(tmp_path / "sharded"), state(back)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert type(loaded) is transformers.Olmo3ForCausalLM and loaded.dtype == torch.float32
    assert not any(info.values()), info
    assert (logits(loaded.eval()) - logits(model)).abs().max() <= 1e-6
    written = json.loads((tmp_path / "sharded" / "config.json").read_text())
    again = json.loads((back / "config.json").read_text())
    for key in written.keys() - {"transformers_version", "rope_parameters", "rope_scaling"}:
        assert again[key] == written[key], key


def test_bfloat16_is_kept(hf_model, transformers, tmp_path) -> None:
    import torch

    model, _ = hf_model(2)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "brain")
    back = there_and_back(tmp_path / "brain", tmp_path)
    one, other = state(tmp_path / "brain"), state(back)
    assert all(other[name].dtype == torch.bfloat16 and torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert transformers.AutoModelForCausalLM.from_pretrained(back, dtype="auto").dtype == torch.bfloat16


def test_a_dtype_that_was_asked_for(hf_model, transformers, tmp_path) -> None:
    """Rounded as torch rounds."""
    import torch

    model, folder = hf_model(3)
    back = there_and_back(folder, tmp_path, "--dtype", "bfloat16")
    found = state(back)
    assert all(torch.equal(tensor.to(torch.bfloat16), found[name]) for name, tensor in model.state_dict().items())
    assert json.loads((back / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_tokenizer_goes_along(hf_model, transformers, tmp_path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    model, _ = hf_model(4, eos_token_id=2, pad_token_id=None)
    words = Tokenizer(models.WordLevel({"weights": 0, "both": 1, "ways": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="ways", unk_token="?")
    model.generation_config.max_new_tokens = 3
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "hf")
    back = there_and_back(tmp_path / "hf", tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(back)
    assert loaded("both ways weights")["input_ids"] == [1, 2, 0]
    assert transformers.GenerationConfig.from_pretrained(back).max_new_tokens == 3
    config = transformers.AutoConfig.from_pretrained(back)
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (2, None, None)


def test_a_stretch_is_refused_just_where_transformers_has_another(transformers) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rng = np.random.default_rng()
    refused = set()
    for _ in range(100):
        fields = {"d_model": 32, "n_heads": 2, "n_kv_heads": 2, "head_dim": int(2 * rng.integers(1, 17))}
        fields |= {"yarn_factor": rng.uniform(2, 16), "yarn_original_len": int(10 ** rng.uniform(0, 6))}
        model = olmo3({**fields, "rope_theta": float(rng.choice([1e2, 1e4, 5e5]))}, "here")
        stretch = {"rope_type": "yarn", "rope_theta": model.rope_theta, "factor": model.yarn_factor,
                   "original_max_position_embeddings": model.yarn_original_len}  # fmt: skip
        config = transformers.Olmo3Config(
            **{"hidden_size": 32, "num_attention_heads": 2, "head_dim": model.head_dim},
            rope_parameters={FULL: stretch, SLIDING: PLAIN_ROPE},
        )
        theirs = ROPE_INIT_FUNCTIONS["yarn"](config, None, layer_type=FULL)[0]
        differ = not np.allclose(theirs.numpy(), rope.yarn(model, fields["yarn_factor"]).radians, rtol=2e-5)
        try:
            write_rope(model)
        except RequestError:
            assert differ, model
        else:
            assert not differ, model
        refused.add(differ)
    assert refused == {True, False}
