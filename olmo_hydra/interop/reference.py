"""The reference implementation: Olmo 3 as the installed `transformers` computes it, on the CPU and in fp32."""

import json
import tempfile
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.model import Attention, BlockNorm, InitMethod, ModelConfig, QKNorm
from olmo_hydra.interop import hf_config
from olmo_hydra.interop.agreement import YARN

ROPE: tuple[str, ...] = ("rope_theta", "rope_scaling", "rope_parameters")  # keys of a config.json
ISSUE = "huggingface/transformers#45945"
# Over so few positions YaRN shows by the length of its rotations, which all pairs have.
PROBE = ModelConfig(
    name="probe",
    d_model=16,
    n_layers=2,
    head_dim=8,
    n_heads=2,
    n_kv_heads=2,
    d_ff=32,
    vocab_size=32,
    vocab_multiple=1,
    max_seq_len=256,
    window=32,
    window_pattern=[Attention.sliding],
    rope_theta=5e5,
    yarn_factor=None,
    yarn_original_len=32,
    yarn_beta_fast=32,
    yarn_beta_slow=1,
    norm_eps=1e-6,
    qk_norm=QKNorm.projection,
    block_norm=BlockNorm.reordered,
    init_method=InitMethod.normal,
    init_std=0.02,
    init_cut=3.0,
    param_dtype=DType.float32,
    compute_dtype=DType.float32,
)


class Reference:
    """A Hugging Face folder, loaded by `AutoModelForCausalLM.from_pretrained`."""

    def __init__(self, folder: Path):
        import torch
        from transformers import AutoModelForCausalLM

        _quieten()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()

    def logits(self, tokens_T: np.ndarray) -> np.ndarray:
        """logits_TV of one prompt, fp32."""
        return self._outputs(tokens_T)[1]

    def residuals(self, tokens_T: np.ndarray) -> np.ndarray:
        """residual_LTD of one prompt: what the first layer reads, and the output of every layer."""
        return self._outputs(tokens_T)[0]

    def _outputs(self, tokens_T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import torch

        residuals: list[np.ndarray] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            output_BTD = output[0] if isinstance(output, tuple) else output  # a tuple in some releases
            residuals.append(output_BTD[0].numpy())

        decoder = self._model.model
        watched = [module.register_forward_hook(keep) for module in (decoder.embed_tokens, *decoder.layers)]
        try:
            with torch.no_grad():
                logits_BTV = self._model(torch.from_numpy(tokens_T.astype(np.int64))[None]).logits
        finally:
            for hook in watched:
                hook.remove()
        return np.stack(residuals), logits_BTV[0].numpy()


@cache
def version() -> str | None:
    """Of the installed `transformers`; None where it or torch is absent, or it is too old to know Olmo 3."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    import transformers

    return transformers.__version__ if hasattr(transformers, "Olmo3ForCausalLM") else None


@cache
def yarn_on_sliding_layers() -> bool:
    """Whether the installed `transformers` stretches the RoPE of sliding layers too, as some releases do.

    Found by trying: two exported models of sliding layers only, equal but for YaRN.
    """
    plain, stretched = (hf_config.to_hf(replace(PROBE, yarn_factor=factor), "float32", {}) for factor in (None, 8.0))
    return not _same_logits(plain, stretched)


def reads_rope(content: dict[str, Any], model: ModelConfig) -> bool:
    """Whether the installed `transformers` finds the RoPE of `model` in a `config.json`: releases read other keys.

    Found by trying: for each kind of layer of the model, a small one with the file's keys against one with those that
    an export writes, which every release understands.
    """
    for kind in set(model.window_pattern):
        rope = {field: getattr(model, field) for field in ("head_dim", "rope_theta", "yarn_factor", *YARN)}
        exported = hf_config.to_hf(replace(PROBE, window_pattern=[kind], **rope), "float32", {})
        with_its_keys = {key: value for key, value in exported.items() if key not in ROPE}
        with_its_keys |= {key: content[key] for key in ROPE if key in content}
        if not _same_logits(exported, with_its_keys):
            return False
    return True


def _same_logits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two configs make the same model of the same weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, other = _from_config(a), _from_config(b)
    other.load_state_dict(one.state_dict())
    tokens_BT = torch.arange(PROBE.vocab_size)[None]
    with torch.no_grad():
        return bool((one(tokens_BT).logits - other(tokens_BT).logits).abs().max() <= 1e-5)


def _from_config(content: dict[str, Any]) -> Any:
    """A model with `transformers`' own initial values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    _quieten()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(content))
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float().eval()


def _quieten() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
