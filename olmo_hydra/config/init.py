"""Schema of the `init` node: where the first parameters come from. Science: they are half of the result."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from olmo_hydra.config.errors import require

SOURCES = ("run", "hf")


class Load(Enum):
    """What is taken over: the parameters alone, or the optimizer's moments and step count with them."""

    weights = "weights"
    weights_and_moments = "weights_and_moments"


@dataclass(init=False, repr=False, eq=False)
class InitConfig:
    """`from` is `run:RUN[@STEP]`, `hf:FOLDER`, or null to draw parameters at random.

    Python reserves the word that people type, so the fields are made by their annotations, and nothing that would spell
    it out is generated. Code reads `source`.
    """

    if TYPE_CHECKING:
        load: Load
    else:
        __annotations__ = {"from": str | None, "load": Load}
        vars().update({"from": None, "load": MISSING})

    def __init__(self, **values: Any):
        self.__dict__.update({"from": None, "load": Load.weights, **values})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InitConfig) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        return f"InitConfig({self.__dict__})"

    @property
    def source(self) -> str | None:
        """The value of `init.from`."""
        value: str | None = self.__dict__["from"]
        return value

    def check(self) -> None:
        if self.source is None:
            require(
                self.load is Load.weights,
                "there is nothing to load moments from: init.from is null",
                key="init.load",
                value=self.load,
                instead="init.load=weights, or init.from=run:RUN",
            )
            return
        kind, colon, place = self.source.partition(":")
        require(
            kind in SOURCES and bool(colon) and bool(place),
            "is no source of parameters",
            key="init.from",
            value=self.source,
            instead="init.from=run:RUN, run:RUN@STEP or hf:FOLDER",
        )
        require(
            kind == "run" or self.load is Load.weights,
            "a folder of Hugging Face weights holds no moments",
            key="init.load",
            value=self.load,
            instead="init.load=weights",
        )
