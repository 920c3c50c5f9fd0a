"""Token files for tests, and `Batches` of them."""

import numpy as np

from olmo_hydra.config.data import Instances
from olmo_hydra.data.loader import Batches

END, PAD = 256, 300


def write(path, tokens, dtype="<u2"):
    np.asarray(tokens).astype(dtype).tofile(path)
    return path


def batches_of(files, **settings):
    """`Batches` of windows, without what `settings` change."""
    windows = {"instances": Instances.windows, "pack_files": 1, "document_mask": False}
    tokens = {"end": END, "pad": PAD, "dtype": np.dtype("<u2")}
    return Batches(files, **windows | tokens | settings)
