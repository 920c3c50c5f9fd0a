"""`olmo-hydra data`: prepare the text of a config, and look at what was prepared."""

import json
import sys
from pathlib import Path

from olmo_hydra.config.compose import compose
from olmo_hydra.config.data import TextConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.data.text.prepare import prepare


def run(action: str, overrides: list[str], as_json: bool) -> None:
    """Prepares (or opens) the corpus of a config; `inspect` prints its domains, and reads every file to check it."""
    config = compose(overrides)
    if not isinstance(config.data, TextConfig):
        raise RequestError("is not text to prepare", key="data", value=config.data.name, instead="data=python_text")
    cache = Path(config.run.root) / "cache" / "data"
    corpus = prepare(config.data, cache, lambda line: print(line, file=sys.stderr))
    if action == "inspect":
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
