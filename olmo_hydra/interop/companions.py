"""What goes with weights wherever they go: the files of their tokenizer, and the ids it gives a meaning of its own."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmo_hydra.config.data import Tokenizer
from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop.hf_config import SPECIAL
from olmo_hydra.interop.hf_weights import HFWeights, read_json
from olmo_hydra.interop.run_weights import RunWeights, find_run, frozen
from olmo_hydra.interop.weights import Weights
from olmo_hydra.tracking.run_dir import RunDir

FOLDER = "tokenizer"  # of a run directory
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
# dolma2's as in allenai/Olmo-3-1025-7B; byte tokens end a document with 256.
IDS = {
    Tokenizer.bytes: {"eos_token_id": 256},
    Tokenizer.dolma2: {"eos_token_id": 100_257, "pad_token_id": 100_277},
}


@dataclass(frozen=True)
class Companions:
    """Values of `hf_config.SPECIAL`, and files to copy."""

    special: dict[str, Any]
    files: tuple[Path, ...] = ()

    def copy(self, folder: Path) -> None:
        """Copies the files; the folder is made if there are any."""
        for file in self.files:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / file.name)


def companions(weights: Weights) -> Companions:
    """What goes with the weights of a folder or a run."""
    if isinstance(weights, HFWeights):
        return _of_folder(weights.folder)
    assert isinstance(weights, RunWeights)
    return companions_of_run(weights.run_dir)


def _of_folder(folder: Path) -> Companions:
    content = read_json(folder / "config.json")
    return Companions({key: content.get(key) for key in SPECIAL}, _files(folder))


def companions_of_run(run_dir: RunDir) -> Companions:
    """What goes with the weights of a run.

    A directory of weights keeps them. A run that trained has those of what it started from, unless it read bytes.
    """
    content = frozen(run_dir)
    if "weights" in content:
        return Companions(content["weights"]["special"], _files(run_dir.path / FOLDER))
    tokenizer = Tokenizer(content["data"]["tokenizer"])
    source = (content.get("init") or {}).get("from")
    if tokenizer is not Tokenizer.bytes and source is not None:
        kind, _, place = source.partition(":")
        try:
            if kind == "hf":
                return _of_folder(Path(place))
            return companions_of_run(find_run(place, run_dir.path.parent)[0])
        except RequestError:  # it is not there any more
            pass
    return Companions(IDS[tokenizer])


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / name for name in FILES if (folder / name).is_file())
