import shutil
from pathlib import Path

import pytest

from olmo_hydra.config.data import DomainConfig, Instances, Positions, TextConfig
from olmo_hydra.data.text.sources.installed import NOT_OURS


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder of real text: some packages of the standard library."""
    folder = tmp_path / "library"
    for package in ("asyncio", "email", "json"):
        source = Path(__import__(package).__file__).parent
        shutil.copytree(source, folder / package, ignore=shutil.ignore_patterns(*NOT_OURS))
    return folder


@pytest.fixture
def cfg(library: Path) -> TextConfig:
    """That folder as two domains: `asyncio`, and `formats` for the rest."""
    return TextConfig(
        name="library",
        tokenizer="bytes",
        seq_len=64,
        seed=0,
        instances=Instances.windows,
        pack_files=1,
        document_mask=False,
        document_positions=Positions.continued,
        repetition_filter=False,
        filter_padding=False,
        domains={
            "asyncio": DomainConfig(source="files", path=str(library / "asyncio"), pattern="*.py"),
            "formats": DomainConfig(source="files", path=str(library), pattern="[ej]*/**/*.py"),
        },
        heldout_fraction=0.2,
        split_seed=0,
        min_bytes=100,
        max_bytes=None,
    )
