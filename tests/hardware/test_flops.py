"""FLOPs and memory against counts made by others, and against a count of pairs."""

import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.model import Attention
from olmo_hydra.hardware.flops import mfu, train_flops_per_token
from olmo_hydra.hardware.memory import state_bytes_per_device

SEVEN_B = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "model.vocab_multiple=1")


def test_seven_billion_at_8192() -> None:
    """AI-Hypercomputer/maxtext 0.2.5 counts 1565.10 TFLOP for 4 x 8192 tokens, all layers causal; 1525.5 exact."""
    model = compose(SEVEN_B).model
    tokens = 4 * 8192
    assert train_flops_per_token(model, 8192, window_exact=False) * tokens / 1e12 == pytest.approx(1565.10, abs=0.01)
    assert train_flops_per_token(model, 8192) * tokens / 1e12 == pytest.approx(1525.5, abs=0.05)
    wide = compose([*SEVEN_B, "model.head_dim=256"]).model
    assert train_flops_per_token(wide, 8192) == train_flops_per_token(model, 8192)


def test_attention_by_counting_pairs() -> None:
    model = compose(["model.window=64"]).model
    seq_len, q_width = 256, model.n_heads * model.head_dim
    pairs = 0
    for layer in range(model.n_layers):
        kind = model.window_pattern[layer % len(model.window_pattern)]
        window = model.window if kind is Attention.sliding else seq_len
        pairs += sum(min(i + 1, window) for i in range(seq_len))
    layers = model.n_layers * (4 * model.d_model**2 + 3 * model.d_model * model.d_ff)
    weights = 6 * (layers + model.d_model * model.padded_vocab)
    exact = weights + 12 * q_width * pairs / seq_len
    assert train_flops_per_token(model, seq_len) == pytest.approx(exact, rel=0.005)


def test_mfu() -> None:
    model = compose(SEVEN_B).model
    per_token = train_flops_per_token(model, 8192)
    assert mfu(model, 8192, 1000.0, devices=8, peak_tflops=None) is None
    assert mfu(model, 8192, 8 * 1e15 / per_token, devices=8, peak_tflops=2000.0) == pytest.approx(0.5)


def test_state_memory() -> None:
    """Parameters and two moments in fp32 are 12 bytes a parameter; a bfloat16 moment saves 2. Norms are not divided."""
    norms = 4096 + 32 * 4 * 4096
    per_device = (7_298_011_136 - norms) // 8 + norms
    assert state_bytes_per_device(compose(SEVEN_B)) == 12 * per_device
    assert state_bytes_per_device(compose([*SEVEN_B, "optim.mu_dtype=bfloat16"])) == 10 * per_device
    assert state_bytes_per_device(compose([*SEVEN_B, "hardware.mesh.tensor=2"])) == 12 * per_device
    assert state_bytes_per_device(compose([*SEVEN_B, "hardware.mesh.data=8"])) == 12 * 7_298_011_136
