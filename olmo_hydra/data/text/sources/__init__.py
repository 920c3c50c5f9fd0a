"""Where text comes from: one function a source, found by the name that `data.domains.<domain>.source` gives."""

from olmo_hydra.data.text.sources import debian, files, huggingface, installed, pypi
from olmo_hydra.data.text.sources.registry import SOURCES, Document, LeftOut, Origin, Unit, source, units

__all__ = [
    "SOURCES",
    "Document",
    "LeftOut",
    "Origin",
    "Unit",
    "debian",
    "files",
    "huggingface",
    "installed",
    "pypi",
    "source",
    "units",
]
