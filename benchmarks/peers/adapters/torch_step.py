"""One update in PyTorch, shared by the peers that are models of it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

DEVICE = {"cpu": "cpu", "gpu": "cuda"}


def load_weights(job: dict[str, Any], model: torch.nn.Module, name_there: Callable[[str], str] = str) -> None:
    """Fills every parameter of a model from a job that has weights; `name_there` gives their names of its own."""
    if not job["weights"]:
        return
    with np.load(job["weights"]) as weights, torch.no_grad():
        named = {name_there(name): parameter for name, parameter in model.named_parameters()}
        assert named.keys() == set(weights), named.keys() ^ set(weights)
        for name, parameter in named.items():
            parameter.copy_(torch.from_numpy(weights[name]))


def adamw(model: torch.nn.Module, optim: dict[str, float], undecayed: list[str]) -> torch.optim.AdamW:
    """Torch's own fused AdamW; `undecayed` are names of parameters without weight decay."""
    named = dict(model.named_parameters())
    without = [named.pop(name) for name in undecayed]
    groups = [{"params": list(named.values())}, {"params": without, "weight_decay": 0.0}]
    betas, decay = (optim["b1"], optim["b2"]), optim["weight_decay"]
    return torch.optim.AdamW(groups, lr=optim["lr"], betas=betas, eps=optim["eps"], weight_decay=decay, fused=True)


def updates(
    job: dict[str, Any],
    model: torch.nn.Module,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> Callable[[np.ndarray, np.ndarray], torch.Tensor]:
    """The update of a job: loss, gradients, clipping by their norm, the optimizer.

    Args:
      job: With bfloat16 as its compute dtype, the loss is computed under autocast.
      model: On the device of the job.
      loss_of: The mean cross-entropy of tokens_BT and labels_BT.
      optimizer: Of the model.
    """
    device = DEVICE[job["device"]]
    bf16 = job["compute_dtype"] == "bfloat16"
    micro_batches = job["batch"] // (job["micro_batch"] or job["batch"])

    def update(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> torch.Tensor:
        tokens, labels = (torch.from_numpy(np.ascontiguousarray(ids)).to(device) for ids in (tokens_BT, labels_BT))
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for micro_batch in zip(tokens.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            with torch.autocast(device, torch.bfloat16) if bf16 else nullcontext():
                loss = loss_of(*micro_batch) / micro_batches
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["optim"]["clip_norm"])
        optimizer.step()
        return total

    return update
