"""Reading a source in tests."""

from collections.abc import Iterator

from olmo_hydra.config.data import DomainConfig
from olmo_hydra.data.text.sources import Document, LeftOut, units


def documents(domain: str, cfg: DomainConfig) -> Iterator[Document | LeftOut]:
    """All documents of a domain, one piece after the other."""
    for unit in units(domain, cfg):
        yield from unit.read()
