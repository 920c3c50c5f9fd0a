"""What decides which tokens a global batch has, as JSON values: kept in checkpoints, compared when one is restored."""

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from olmo_hydra.config.data import DataConfig, FilesConfig, Instances, TokensConfig
from olmo_hydra.config.errors import show
from olmo_hydra.config.identity import plain
from olmo_hydra.config.tokenizers import Ids
from olmo_hydra.data import order
from olmo_hydra.data.files.places import peek
from olmo_hydra.data.files.remote import Remote
from olmo_hydra.data.files.token_file import TokenFile
from olmo_hydra.data.instances import document_index, mixture, repetition

SAMPLE = (
    4096  # bytes of the beginning, the middle and the end of a file; a file of no more than all three is read whole
)
THREADS = 32  # that read samples of remote files
NAMED = 10  # files named in a comparison; more are counted


def fingerprint(cfg: DataConfig, ids: Ids, files: Sequence[TokenFile], n_instances: int) -> dict[str, Any]:
    """The fingerprint of a run's data. Where files lie, how large a batch is, and what is not in use is not in it.

    Args:
      cfg: The data group.
      ids: Of its tokenizer.
      files: In the order that numbers the instances.
      n_instances: In all of them.

    Returns:
      `rules` by version, `settings`, `files` as `[name, label, tokens, item type, hash of samples, that of its mask]`,
      `instances`, and `olmo_core`: what OLMo-core would say of the same files.

    Raises:
      RequestError: A file cannot be read.
    """
    rules, settings = _in_use(cfg)
    settings |= {"vocab_size": ids.vocab_size, "eos": ids.eos, "pad": ids.pad}
    masks = [file.mask for file in files if file.mask is not None]
    hashes = samples([*files, *masks])
    rows = [
        *(
            [file.name, file.label, file.n_tokens, file.dtype.str, hashes[file], file.mask and hashes[file.mask]]
            for file in files
        )
    ]
    return {
        "rules": rules,
        "settings": settings,
        "files": rows,
        "instances": n_instances,
        "olmo_core": of_olmo_core(cfg, ids, files),
    }


def _in_use(cfg: DataConfig) -> tuple[dict[str, str], dict[str, Any]]:
    """Versions of rules and values of settings that say what a batch holds."""
    rules = {"order": order.VERSION}
    names = ["seq_len", "max_target_seq_len", "seed", "instances", "document_mask", "repetition_filter"]
    of_sources: dict[str, float] = {}
    if cfg.instances is not Instances.windows:
        rules["documents"] = document_index.VERSION
        names += ["pack_files"] if cfg.instances is Instances.packed else []
    if cfg.document_mask:
        names += ["document_positions"]
    if cfg.repetition_filter:
        rules["filter"] = repetition.VERSION
        names += ["filter_padding"]
    if isinstance(cfg, FilesConfig):
        names += ["file_seed"]
    if isinstance(cfg, TokensConfig) and cfg.is_mixture:
        rules["mixture"] = mixture.VERSION
        names += ["mixture_tokens", "mixture_seed"]
        for label, source in cfg.sources.items():
            of_sources |= {f"sources.{label}.{name}": getattr(source, name) for name in ("ratio", "max_repetition")}
    values = {name: plain(getattr(cfg, name)) for name in names}
    return rules, {name: value for name, value in values.items() if value is not None} | of_sources


def samples(files: Iterable[TokenFile]) -> dict[TokenFile, str]:
    """A hash of samples of each file. Remote ones are not copied for it."""
    different = list(dict.fromkeys(files))
    if any(isinstance(file.path, Remote) for file in different):
        with ThreadPoolExecutor(THREADS) as threads:
            return dict(zip(different, threads.map(_sample, different), strict=True))
    return {file: _sample(file) for file in different}


def of_olmo_core(cfg: DataConfig, ids: Ids, files: Sequence[TokenFile]) -> str | None:
    """OLMo-core's fingerprint of the files, version "v2.0"; None where it has no such data set.

    `fingerprint` in data/numpy_dataset.py of allenai/OLMo-core 3.0.0: tokenizer, cut, names and sizes of files.
    """
    dtype = f"<class 'numpy.{files[0].dtype.name}'>"
    of_tokens: dict[str, Any] = {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad,
        "eos_token_id": ids.eos,
        "dtype": dtype,
    }
    if isinstance(cfg, TokensConfig) and cfg.is_mixture:
        return None
    match cfg.instances:
        case Instances.windows:
            name = "NumpyFSLDataset"
            fields = of_tokens | {"max_target_sequence_length": cfg.max_target_seq_len, "bos_token_id": None}
        case Instances.packed:
            name = "NumpyPackedFSLDataset"
            fields = of_tokens | {"long_doc_strategy": "truncate", "bos_token_id": None, "sequence_length": cfg.seq_len}
            fields |= {"source_group_size": cfg.pack_files} if cfg.pack_files > 1 else {}
        case Instances.padded:
            return None
    text = [f"class={name}", *(f"{key}={value}," for key, value in fields.items())]
    text += [f"path={str(file.path).rpartition('/')[2]},size={file.n_bytes}," for file in files]
    return hashlib.sha256("".join(text).encode()).hexdigest()


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What two fingerprints differ in, a line each; none if they mean the same data. At most ten files are named.

    OLMo-core's is not compared: it says nothing that ours does not.

    Args:
      saved: As it was.
      now: As it is.
    """
    if set(saved) != set(now):
        return ["the data was opened by another version of this program, whose fingerprints cannot be compared"]
    settings_are_equal = saved["settings"] == now["settings"]
    lines = [
        f"the rule of {name}: {saved['rules'].get(name)} then, {now['rules'].get(name)} now"
        for name in _changed(saved["rules"], now["rules"])
        if settings_are_equal or (name in saved["rules"] and name in now["rules"])  # else a setting says it
    ]
    lines += [
        f"data.{name}: {show(saved['settings'].get(name))} then, {show(now['settings'].get(name))} now"
        for name in _changed(saved["settings"], now["settings"])
    ]
    of_files = _of_files(saved["files"], now["files"])
    lines += of_files[:NAMED] + ([f"and {len(of_files) - NAMED:,} more files"] if len(of_files) > NAMED else [])
    if saved["instances"] != now["instances"]:
        lines.append(f"{saved['instances']:,} instances then, {now['instances']:,} now")
    return lines


def _of_files(saved: list[list[Any]], now: list[list[Any]]) -> list[str]:
    then, here = ({row[0]: row[1:] for row in rows} for rows in (saved, now))
    lines = [f"{name} is gone" for name in then if name not in here]
    lines += [f"{name} is new" for name in here if name not in then]
    for name in _changed(then, here):
        if name not in then or name not in here:
            continue
        (label, size, dtype, sample, mask), (label_now, size_now, dtype_now, sample_now, mask_now) = (
            then[name],
            here[name],
        )
        what = {
            f"had {size:,} tokens, and has {size_now:,}": size != size_now,
            f"had items of {np.dtype(dtype)}, and has {np.dtype(dtype_now)}": dtype != dtype_now,
            "has other content": size == size_now and sample != sample_now,
            "has another label mask": mask != mask_now,
            f"was labelled {label}, and is {label_now}": label != label_now,
        }
        lines.append(f"{name} " + "; ".join(text for text, is_so in what.items() if is_so))
    if not lines and saved != now:
        lines.append("the same files come in another order, or another number of times")
    return lines


def _changed(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in {**saved, **now} if name not in saved or name not in now or saved[name] != now[name]]


def _sample(file: TokenFile) -> str:
    size = file.n_bytes
    starts = (0, SAMPLE, 2 * SAMPLE) if size <= 3 * SAMPLE else (0, (size - SAMPLE) // 2, size - SAMPLE)
    content = b"".join(peek(file.path, start, SAMPLE) for start in starts if start < size)
    return hashlib.sha256(content).hexdigest()[:16]
