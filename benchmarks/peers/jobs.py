"""What is measured: models, their batch and their optimizer, as the plain JSON that every worker gets."""

from typing import Any

Job = dict[str, Any]

OPTIM = {"lr": 1e-3, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
SHARED = {"head_dim": 64, "window": 256, "pattern": ["sliding", "sliding", "sliding", "full"], "rope_theta": 5e5}
TINY = {"d_model": 256, "n_layers": 4, "n_heads": 4, "d_ff": 704, "vocab_size": 8192, **SHARED}
FIFTY = {"d_model": 512, "n_layers": 8, "n_heads": 8, "d_ff": 1408, "vocab_size": 24576, **SHARED}
CELLS = {  # model and compute dtype
    "tiny": (TINY, "float32"),
    "tiny_bf16": (TINY, "bfloat16"),
    "50m": (FIFTY, "float32"),
    "50m_bf16": (FIFTY, "bfloat16"),
}
TOLERANCE = {"float32": 2e-4, "bfloat16": 1e-2}  # of a loss, relative to ours


def job(cell: str, weights: str | None, **changed: Any) -> Job:
    """The job of a cell of the benchmark.

    Norms are Olmo 3's (RMSNorm with `norm_eps`, on sublayers' outputs and over whole projections), the head is untied,
    parameters and moments are fp32, the input table alone has no weight decay, and the loss is the mean cross-entropy.

    Args:
      cell: Of `CELLS`.
      weights: An npz file of initial parameters under Hugging Face's names, which our worker writes and others read.
        None: every program draws its own.
      changed: Other fields, in place of these.
    """
    model, compute_dtype = CELLS[cell]
    return {
        "model": model | {"norm_eps": 1e-6},
        "compute_dtype": compute_dtype,
        "optim": OPTIM,
        "batch": 8,  # instances
        "micro_batch": None,  # instances computed at once; None: as the program does by itself
        "seq_len": 512,  # tokens
        "device": "cpu",  # or gpu
        "hardware": "cpu",  # the file of it in our config
        "remat": "none",  # or full: every layer is computed again in the backward pass
        "warmup": 3,  # updates, whose losses are compared
        "seed": 0,
        "weights": weights,
        "overrides": [],  # of our config
    } | changed


def num_params(model: dict[str, Any]) -> int:
    """Parameters of the model of a job."""
    d, width = model["d_model"], model["n_heads"] * model["head_dim"]
    layer = 4 * d * width + 3 * d * model["d_ff"] + 2 * width + 2 * d
    return 2 * model["vocab_size"] * d + model["n_layers"] * layer + d
