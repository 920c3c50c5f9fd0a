"""`olmo-hydra data inspect`: what an update of a run read, what read a document, and what a config prepared."""

import argparse
import json
import sys
from pathlib import Path

from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import TextConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.prepare import prepare


def run(parsed: argparse.Namespace) -> None:
    """Looks at a run's data, or at the prepared text of a config."""
    prepared(parsed.overrides, parsed.json, check=True)


def prepared(overrides: list[str], as_json: bool, *, check: bool) -> None:
    """Prepares (or opens) the corpus of a config and prints its domains; `check` reads every file."""
    config = compose(overrides)
    if not isinstance(config.data, TextConfig):
        raise RequestError("is not text to prepare", key="data", value=config.data.name, instead="data=python_text")
    cache = Path(config.run.root) / "cache" / "data"
    corpus = prepare(config.data, cache, lambda line: print(line, file=sys.stderr))
    if check:
        corpus.verify()
    if as_json:
        print(
            json.dumps(
                {"folder": str(corpus.folder), "fingerprint": corpus.fingerprint, "domains": corpus.manifest["domains"]}
            )
        )
        return
    print(f"folder       {corpus.folder}\nfingerprint  {corpus.fingerprint}")
    for name, domain in corpus.manifest["domains"].items():
        counts = "; ".join(
            f"{split} {domain[split]['documents']:,} documents, {domain[split]['bytes']:,} bytes"
            for split in ("train", "heldout")
        )
        print(f"{name:12} {counts}")
