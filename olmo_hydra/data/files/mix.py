"""Mix files of OLMo-core: a label and a path a line, read from a file, the installed package, or its wheel on PyPI."""

import importlib.util
import random
from pathlib import Path

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.suggest import choices, nearest
from olmo_hydra.data.files import wheels
from olmo_hydra.data.files.hashes import sha256_of_file
from olmo_hydra.data.files.wanted import Wanted
from olmo_hydra.data.report import Report

PLACEHOLDER = "{TOKENIZER}"
# ai2-olmo-core 3.0.0 on PyPI, and the sha256 of each of its mixes.
WHEEL = "9006e75b51c05ef8d701826f5f45980672ebade86f8050e185ae26b4626b4ad5"
MIXES = {
    "OLMo-longmino-mix-0625": "85619270ce45ac7add26a68224a044d84858823b5c2c303d67f4e33989667ffa",
    "OLMo-longmino-mix-0925": "1d71bfa279f7aee8c68cb0a27dcbcf4a045de58e21df77e3d16b5c7a1b3dc99b",
    "OLMo-midtraining-mix-0625-100B": "9e73f2e996ec3babef0dc9f3ad24b92f5f43cd82ae217bf75c029db8a8add720",
    "OLMo-midtraining-mix-0925-ingredient1-100B": "44b28e8585c472251b942d505d3278f1049576ca775db0b16001712021667ecf",
    "OLMo-midtraining-mix-0925-ingredient2-100B": "27b0cc8c9466a29493b063660408033e44efd4aada710f72c9a273a8c303ab93",
    "OLMo-mix-0625-150Bsample": "33e4268e769f55ef0441a9666d18b9036c8d2e765d711ca4064e894707724a3f",
    "OLMo-mix-0625-700Bsample": "17cc82590a10226c9f2b762154ab1476ef6ea7302749a683d8b4c03669562c3c",
    "OLMo-mix-0625-official": "d770716a78fe0e9fa074c89f010574fd34ec0ee750cb79188120c62047c1a270",
    "OLMo-mix-0625": "b7861615398c35853236a7d4f84e401eb841e19c1c5391dfa0f534d570f92be6",
    "OLMo-mix-0925-official": "e72803971ba7150d7ecf6260a21abb4086953bd915edcb96881d2e78b1de6471",
    "OLMo-mix-0925": "fcc6a82b9a5e868885decfbc30486967644c7ca482a7d687102f7ff597dbd7c9",
    "OLMoE-mix-0824-dev": "9d34a8efab007fad53ebbf25f381e3e5637e7a1743dc241846c87a76ee3cf553",
    "OLMoE-mix-0824": "b784bb2a3867ac4ecb0e54bdbab87bfefd64808b4b5ea649bb71d07f0b9e0a0f",
    "c4-ppl-validation": "3aea24b98db284974fb2e1b3fcaffc9ab416a24ff7111e67ff8eea4817b4a046",
    "code-fresh-ppl-validation": "39eb5b4efb83871dd2e66b3e2fe9052f65fb87e882de96538e5a881c639158fd",
    "dolma17": "e5cb2bcb10a6a44db2f87d703a41aeeced3e7806aa0222139263a8f09f3d1aaa",
    "v3-small-ppl-validation": "3fcfe3af7b0e8eb2dd4e7ccf0fa5f2fb95b4b3c16c53d39c8eba2ee6c573b6d1",
}
# What stands for dolma2 in the paths of a mix, where it is not that name (OLMo-core, `DataMix.build` in data/mixes).
DOLMA2 = "allenai/dolma2-tokenizer"
DOLMA2_IN = {
    "dolma2-tokenizer": ("v3-small-ppl-validation", "c4-ppl-validation", "code-fresh-ppl-validation"),
    "allenai/dolma3-tokenizer": (
        *("OLMo-mix-0625-official", "OLMo-mix-0925-official", "OLMo-midtraining-mix-0625-100B"),
        *("OLMo-midtraining-mix-0925-ingredient1-100B", "OLMo-midtraining-mix-0925-ingredient2-100B"),
        *("OLMo-longmino-mix-0625", "OLMo-longmino-mix-0925"),
    ),
}


def read_mix(name: str, tokenizer: str, key: str, report: Report) -> list[Wanted]:
    """The files of a mix, in order. One that stands there several times is read as often.

    Args:
      name: A mix file, or the name of one in OLMo-core; that is downloaded if the package is not installed.
      tokenizer: As in `data.tokenizer`; paths depend on it.
      key: Of the config that names the mix, for errors.
      report: Receives a line before a download.

    Raises:
      RequestError: There is no such mix, or a line of it is wrong: names file and line.
    """
    file = _find(name, key, report)
    stands_for = spelled(file.stem, tokenizer)
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the mix cannot be read ({error})", key=key, value=name, where=str(file)) from error
    files = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 2 or not all(parts) or PLACEHOLDER not in parts[1]:
            raise RequestError(
                f"the line {line.strip()[:200]!r} names no token file",
                where=f"{file}, line {number}",
                instead=f"label,path/{PLACEHOLDER}/file.npy",
            )
        files.append(Wanted(parts[0], parts[1].replace(PLACEHOLDER, stands_for)))
    if not files:
        raise RequestError("the mix lists no files", key=key, value=name, where=str(file))
    return files


def shuffled(files: list[Wanted], seed: int) -> list[Wanted]:
    """The files in the order of Python's generator, as OLMo-core's stage 3 has them (data.md, section 7)."""
    files = list(files)
    random.Random(seed).shuffle(files)
    return files


def spelled(mix: str, tokenizer: str) -> str:
    """What `{TOKENIZER}` is in the paths of a mix. A tokenizer of another kind stands there by its own name."""
    if tokenizer == "dolma2":
        return next((name for name, mixes in DOLMA2_IN.items() if mix in mixes), DOLMA2)
    return Path(tokenizer).stem


def is_named(name: str) -> bool:
    """Whether a mix is one of OLMo-core's, whose files lie nowhere by themselves."""
    return name in MIXES and not Path(name).is_file()


def _find(name: str, key: str, report: Report) -> Path:
    if Path(name).is_file():
        return Path(name)
    installed = _installed(name)
    if name not in MIXES and installed is not None:
        return installed
    if name in MIXES:
        if installed is not None and sha256_of_file(installed) == MIXES[name]:
            return installed
        member = f"olmo_core/data/mixes/{name}.txt"
        return wheels.member("ai2-olmo-core", "3.0.0", WHEEL, member, MIXES[name], wheels.machine_cache(), report)
    close = nearest(name, MIXES)
    instead = f"{key}={close}" if close else f"a file, or one of {choices(MIXES)}"
    raise RequestError("there is no such mix", key=key, value=name, instead=instead)


def _installed(name: str) -> Path | None:
    """The mix in an installed OLMo-core, which is not imported: it would bring torch."""
    package = importlib.util.find_spec("olmo_core")
    for folder in (package and package.submodule_search_locations) or []:
        file = Path(folder) / "data" / "mixes" / f"{name}.txt"
        if file.is_file():
            return file
    return None
