"""The token files that a config names, in their order, and the text that is never trained on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import DataConfig, FilesConfig, MixConfig, PreparedConfig, TextConfig, TokensConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.data.corpus import Corpus
from olmo_hydra.data.files.mix import is_named, read_mix, shuffled
from olmo_hydra.data.files.token_file import TokenFile, token_type
from olmo_hydra.data.files.wanted import Wanted, expand, open_all
from olmo_hydra.data.fingerprint import samples
from olmo_hydra.data.heldout import HeldoutDocument, of_files
from olmo_hydra.data.report import Report
from olmo_hydra.data.text.prepare import prepare
from olmo_hydra.data.tokenizers.named import Named
from olmo_hydra.data.tokenizers.tokenizer import Tokenizer, build

COPIES = "files"  # folder of the cache for remote files


@dataclass(frozen=True)
class Listing:
    """What a config names.

    `files` are trained on; `heldout` reads, when it is called, what is not, by label. `facts` go into the record of a
    start.
    """

    tokenizer: Tokenizer
    files: Sequence[TokenFile]
    heldout: Callable[[], Mapping[str, Sequence[HeldoutDocument]]]
    facts: dict[str, Any]


@singledispatch
def list_files(cfg: DataConfig, cache: Path, report: Report) -> Listing:
    """The files that a config of the data group names. Each schema registers its own function.

    Args:
      cfg: The data group.
      cache: Folder of prepared text and copies.
      report: Receives one line of progress at a time.

    Raises:
      RequestError: A file is absent or is no token file, a mix or a pattern names none, ...
    """
    raise TypeError(f"no data is registered for {type(cfg).__name__}")


@list_files.register
def _text(cfg: TextConfig, cache: Path, report: Report) -> Listing:
    return _corpus(cfg, prepare(cfg, cache / "data", report))


@list_files.register
def _prepared(cfg: PreparedConfig, cache: Path, report: Report) -> Listing:
    corpus = open_prepared(cfg)
    made_with = corpus.manifest["recipe"]["tokenizer"]
    is_file = cfg.tokenizer.endswith(".json")
    if build(cfg.tokenizer) != corpus.tokenizer if is_file else made_with != cfg.tokenizer:
        own = corpus.folder / "tokenizer.json"
        raise RequestError(
            f"is not the tokenizer of the corpus, which was prepared with {made_with}",
            key="data.tokenizer",
            value=cfg.tokenizer,
            instead=f"data.tokenizer={own if made_with.endswith('.json') else made_with}",
        )
    return _corpus(cfg, corpus)


def open_prepared(cfg: PreparedConfig) -> Corpus:
    """The corpus in a folder that was prepared before.

    Raises:
      RequestError: There is no such folder, it is no corpus or damaged, or another one than `cfg.corpus` says.
    """
    folder = Path(cfg.path).expanduser()
    if not folder.is_dir():
        raise RequestError(
            "there is no such folder",
            key="data.path",
            value=cfg.path,
            instead="a folder that `olmo-hydra data prepare SOURCE... --out FOLDER` made",
        )
    corpus = Corpus(folder)
    if cfg.corpus not in (None, corpus.fingerprint):
        raise RequestError(
            f"is not the fingerprint of the corpus in {folder}, which is {corpus.fingerprint}",
            key="data.corpus",
            value=cfg.corpus,
            instead="data.path=<the folder that holds it>, or data.corpus=null",
        )
    return corpus


def _corpus(cfg: DataConfig, corpus: Corpus) -> Listing:
    facts = {
        "name": cfg.name,
        "folder": str(corpus.folder),
        "python": corpus.manifest["python"],
        "domains": corpus.manifest["domains"],
    }
    return Listing(corpus.tokenizer, corpus.train_files(), partial(corpus.heldout_documents, cfg), facts)


@list_files.register
def _mix(cfg: MixConfig, cache: Path, report: Report) -> Listing:
    return _files(cfg, _of_mix(cfg, cfg.mix, "data.mix", report), cache, report)


@list_files.register
def _tokens(cfg: TokensConfig, cache: Path, report: Report) -> Listing:
    wanted = []

    def expanded(patterns: Sequence[str], key: str) -> list[str]:
        return [path for pattern in patterns for path in expand(cfg.root, pattern, key, _copies(cfg, cache))]

    for label, source in cfg.sources.items():
        key = f"data.sources.{label}"
        paths = expanded(source.paths, f"{key}.paths")
        masks = expanded(source.label_masks, f"{key}.label_masks")
        if masks and len(masks) != len(paths):
            raise RequestError(
                f"{len(masks):,} files for {len(paths):,} token files",
                key=f"{key}.label_masks",
                value=source.label_masks,
                instead="one mask for each file of paths, in the same order",
            )
        pairs = zip(paths, masks, strict=True) if masks else ((path, None) for path in paths)
        wanted += [Wanted(label, path, mask) for path, mask in pairs]
    return _files(cfg, wanted, cache, report)


def _of_mix(cfg: FilesConfig, mix: str, key: str, report: Report) -> list[Wanted]:
    if cfg.root is None and is_named(mix):
        raise RequestError(
            f"says nowhere to find the files of {key}={mix}",
            key="data.root",
            value=None,
            instead=f"data.root=FOLDER or URL that the paths of the mix start from, or {key}=null",
        )
    return read_mix(mix, cfg.tokenizer, key, report)


def _files(cfg: FilesConfig, wanted: list[Wanted], cache: Path, report: Report) -> Listing:
    tokenizer: Tokenizer = (
        Named(cfg.tokenizer, report) if cfg.tokenizer in KNOWN else build(cfg.tokenizer, report=report)
    )
    if cfg.file_seed is not None:
        wanted = shuffled(wanted, cfg.file_seed)
    if isinstance(cfg, TokensConfig) and cfg.is_mixture:  # the files of each of its sources stay together
        wanted = sorted(wanted, key=lambda file: list(cfg.sources).index(file.label))
    unseen = [] if cfg.heldout_mix is None else _of_mix(cfg, cfg.heldout_mix, "data.heldout_mix", report)
    dtype, copies = token_type(tokenizer.vocab_size), _copies(cfg, cache)
    files = open_all(cfg.root, wanted, dtype, copies, report)
    heldout = open_all(cfg.root, unseen, dtype, copies, report)
    _refuse_common(files, heldout)
    facts = {
        "name": cfg.name,
        "root": cfg.root,
        "domains": _totals({"train": files, "heldout": heldout}),
    }
    limits = cfg.heldout_bytes, cfg.heldout_document_bytes
    return Listing(tokenizer, files, partial(of_files, heldout, tokenizer, *limits), facts)


def _copies(cfg: FilesConfig, cache: Path) -> Path | None:
    return cache / COPIES if cfg.keep_copies else None


def _totals(sides: dict[str, list[TokenFile]]) -> dict[str, dict[str, dict[str, int]]]:
    """Files and tokens of both sides, by label."""
    labels = dict.fromkeys(file.label for files in sides.values() for file in files)
    totals = {label: {side: {"files": 0, "tokens": 0} for side in sides} for label in labels}
    for side, files in sides.items():
        for file in files:
            totals[file.label][side]["files"] += 1
            totals[file.label][side]["tokens"] += file.n_tokens
    return totals


def _refuse_common(files: Sequence[TokenFile], heldout: Sequence[TokenFile]) -> None:
    """Raises RequestError for a held-out file that is also trained on, by whatever name."""
    sizes = {file.n_tokens for file in heldout if file.n_tokens}
    alike = samples(file for file in files if file.n_tokens in sizes)
    trained = {(file.n_tokens, sample): file for file, sample in alike.items()}
    for file, sample in samples(heldout).items():
        if (same := trained.get((file.n_tokens, sample))) is not None:
            raise RequestError(
                f"the held-out file is also trained on, as {same.path} of {same.label}",
                key="data.heldout_mix",
                where=str(file.path),
                instead="a held-out mix that shares no file with the training data",
            )
