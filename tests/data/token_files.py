"""Token files for tests, and `Batches` of them."""

import tempfile
from pathlib import Path

import numpy as np

from olmo_hydra.config.data import Instances
from olmo_hydra.data.files.token_file import open_file
from olmo_hydra.data.instances.kinds import Packed, Padded, Windows
from olmo_hydra.data.loader import Batches, Cut
from olmo_hydra.data.sampler import Sampler

END, PAD = 256, 300


def write(path, tokens, dtype="<u2"):
    np.asarray(tokens).astype(dtype).tofile(path)
    return path


def files_of(paths, dtype="<u2", label="text", masks=None):
    masks = masks or [None] * len(paths)
    return [open_file(path, np.dtype(dtype), label=label, mask=mask) for path, mask in zip(paths, masks, strict=True)]


def batches_of(
    paths,
    *,
    seq_len,
    global_batch,
    seed,
    instances=Instances.windows,
    pack_files=1,
    dtype="<u2",
    folder=None,
    chunk=1,
    masks=None,
    **cut,
):
    """`Batches` of token files of 301 ids (or as many as `vocab_size` says), orders in a folder that goes away."""
    files = files_of(paths, dtype, masks=masks)
    cut = {"vocab_size": PAD + 1, "end": END, "pad": PAD} | cut
    folder = folder or Path(tempfile.mkdtemp())
    match instances:
        case Instances.windows:
            source = Windows(files, seq_len, chunk)
        case Instances.packed:
            source = Packed(files, seq_len, pack_files, cut["end"], folder)
        case Instances.padded:
            source = Padded(files, seq_len, cut["end"], folder)
    sampler = Sampler(len(source), global_batch, seed=seed, chunk=chunk, folder=folder)
    return Batches(files, source, sampler, Cut(seq_len, **cut))
