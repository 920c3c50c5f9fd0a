"""The global order of instances: OLMo-core's, number for number (allenai/OLMo-core, data/data_loader.py at fa6c501)."""

import numpy as np


def instance_order(n: int, *, seed: int, epoch: int, chunk: int = 1) -> np.ndarray:
    """The order in which one epoch visits instances 0 to n - 1.

    Args:
      n: Number of instances, below 2^32.
      seed: Seed of the order; with `epoch` (from 1) it fixes the permutation.
      chunk: Instances that stay together, so that another sequence length keeps the token order. A rest of n below one
        chunk is not visited.

    Returns:
      uint32 of length n // chunk * chunk.
    """
    if n >= 2**32:
        raise ValueError(f"{n} instances do not fit in the uint32 of the order")
    if epoch < 1:
        raise ValueError(f"epoch {epoch}: epochs count from 1")
    chunks = np.arange(n // chunk, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(chunks)
    return (chunks[:, None] * np.uint32(chunk) + np.arange(chunk, dtype=np.uint32)).reshape(-1)


def global_batches(n: int, global_batch: int, *, seed: int, epoch: int, chunk: int = 1) -> np.ndarray:
    """The global batches of one epoch, uint32 of shape (batches, global_batch). The tail below one batch is dropped."""
    order = instance_order(n, seed=seed, epoch=epoch, chunk=chunk)
    return order[: len(order) // global_batch * global_batch].reshape(-1, global_batch)
