"""What goes with weights wherever they go: the files of their tokenizer, and the ids it gives a meaning of its own."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmo_hydra.config.errors import RequestError, show
from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.interop.hf_config import SPECIAL
from olmo_hydra.interop.hf_weights import HFWeights, read_json
from olmo_hydra.interop.places import find_run, frozen
from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.interop.values import Values
from olmo_hydra.interop.weights import Weights
from olmo_hydra.tracking.run_dir import RunDir

FOLDER = "tokenizer"  # of a run directory
TEMPLATES = "additional_chat_templates"  # beside a tokenizer's files, the folder of those that are not the default
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
# dolma2's as in allenai/Olmo-3-1025-7B; byte tokens end a document with 256.
IDS = {
    "bytes": {"eos_token_id": KNOWN["bytes"].eos},
    "dolma2": {"eos_token_id": KNOWN["dolma2"].eos, "pad_token_id": KNOWN["dolma2"].pad},
}
VOCABULARY = {"tokenizer.json", "vocab.json"}  # no tokenizer is without one of them


@dataclass(frozen=True)
class Companions:
    """Values of `hf_config.SPECIAL`, and files to copy."""

    special: dict[str, Any]
    files: tuple[Path, ...] = ()

    @property
    def has_tokenizer(self) -> bool:
        return any(file.name in VOCABULARY for file in self.files)

    def copy(self, folder: Path) -> None:
        """Copies the files; the folder is made if there are any, and the one for templates in it."""
        for file in self.files:
            into = folder / TEMPLATES if file.parent.name == TEMPLATES else folder
            into.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, into / file.name)


def companions(weights: Weights) -> Companions:
    """What goes with the weights of a folder or a run."""
    if isinstance(weights, HFWeights):
        return _of_folder(weights.folder)
    assert isinstance(weights, RunWeights)
    return companions_of_run(weights.run_dir)


def with_tokenizer(beside: Companions, folder: Path, vocab_size: int) -> Companions:
    """The files of another folder's tokenizer, with the ids of its config.json if it has one and else those of before.

    Raises:
      RequestError: The folder has no tokenizer, or one of another vocabulary.
    """
    files = _files(folder)
    special = _of_folder(folder).special if (folder / "config.json").is_file() else beside.special
    found = Companions(special, files)
    if not found.has_tokenizer:
        wanted = f"a folder with {' or '.join(sorted(VOCABULARY))}"
        raise RequestError("has no tokenizer", key="--tokenizer", value=folder, instead=wanted)
    for name, value in special.items():
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(one, int) and one >= vocab_size for one in ids):
            problem = f"its {name} is {show(value)}, and the model has {vocab_size} ids"
            raise RequestError(problem, key="--tokenizer", value=folder)
    return found


def _of_folder(folder: Path) -> Companions:
    file = folder / "config.json"
    return Companions(_special(Values(read_json(file), str(file))), _files(folder))


def _special(values: Values) -> dict[str, Any]:
    """The ids of `SPECIAL`. Several may end a text. Raises RequestError for what is no id."""
    for key in SPECIAL:
        found = values.get(key)
        several = key == "eos_token_id" and isinstance(found, list)
        if found is not None and any(type(one) is not int for one in (found if several else [found])):
            raise values.wrong(key, "is no whole number" + (" or list of them" if key == "eos_token_id" else ""))
    return {key: values.get(key) for key in SPECIAL}


def companions_of_run(run_dir: RunDir) -> Companions:
    """What goes with the weights of a run.

    A directory of weights keeps them. A run that trained has those of what it started from, unless it read bytes. A
    config that names no tokenizer has none.
    """
    content, seen = frozen(run_dir), {run_dir.path.resolve()}
    while "weights" not in content:
        tokenizer, source = _named(content, "data", "tokenizer"), _named(content, "init", "from")
        if tokenizer == "bytes" or not source:
            return Companions(IDS.get(tokenizer, {}))
        kind, _, place = source.partition(":")
        try:
            if kind == "hf":
                return _of_folder(Path(place))
            run_dir = find_run(place, run_dir.path.parent)[0]
            content = frozen(run_dir)
        except RequestError:  # it is not there any more
            return Companions(IDS.get(tokenizer, {}))
        if run_dir.path.resolve() in seen:
            raise RequestError("its runs began from one another", where=str(run_dir.config), key="init.from")
        seen.add(run_dir.path.resolve())
    node = Values(content, str(run_dir.config)).within("weights").within("special")
    return Companions(_special(node), _files_of_run(run_dir.path / FOLDER))


def _named(content: dict[str, Any], group: str, key: str) -> str:
    node = content.get(group)
    value = node.get(key) if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _files_of_run(folder: Path) -> tuple[Path, ...]:
    """As `_files`. Raises RequestError for a link, which could name any file of this machine: they are passed on."""
    files = _files(folder)
    for path in (folder, folder / TEMPLATES, *files):
        if path.is_symlink():
            raise RequestError("is a link, and would be copied", where=str(path), instead="the file itself")
    return files


def _files(folder: Path) -> tuple[Path, ...]:
    templates = sorted((folder / TEMPLATES).glob("*.jinja"))
    return tuple(file for file in (*(folder / name for name in FILES), *templates) if file.is_file())
