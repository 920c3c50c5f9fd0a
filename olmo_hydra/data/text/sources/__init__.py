"""Where text comes from: one function a source, found by the name that `data.domains.<domain>.source` gives."""

from olmo_hydra.data.text.sources import files, installed
from olmo_hydra.data.text.sources.registry import SOURCES, Document, LeftOut, Origin, Unit, documents, source, units

__all__ = ["SOURCES", "Document", "LeftOut", "Origin", "Unit", "documents", "files", "installed", "source", "units"]
