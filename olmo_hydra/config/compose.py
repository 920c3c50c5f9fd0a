"""From Hydra's composed config to the typed, derived and checked `Config`."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from olmo_hydra.config import rules
from olmo_hydra.config.arguments import refuse_silent_mistakes
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.paths import CONF
from olmo_hydra.config.root import Config
from olmo_hydra.config.suggest import unknown_key


def resolve(cfg: DictConfig) -> Config:
    """The typed config of a composed one, derived values filled.

    Raises:
      RequestError: A rule is broken, or `+key` added a key that no schema has.
      omegaconf.errors.OmegaConfBaseException: A mandatory value or an interpolation is missing.
    """
    cfg = copy.deepcopy(cfg)
    if "hydra" in cfg:
        with open_dict(cfg):
            del cfg["hydra"]
    _refuse_unknown(cfg, Config, prefix="")
    OmegaConf.resolve(cfg)
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    return rules.apply(config)


def compose(overrides: Sequence[str]) -> Config:
    """What `python train.py <overrides>` would run. For commands that are not started by Hydra."""
    refuse_silent_mistakes(overrides)
    with conf_found():
        return resolve(hydra_compose("config", overrides=list(overrides)))


@contextmanager
def conf_found() -> Iterator[None]:
    """Hydra's own `compose` finds `conf/` within."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def _refuse_unknown(node: DictConfig, schema: Any, prefix: str) -> None:
    """`+model.typo=1` opens a typed node; refuse what it brought in."""
    if dataclasses.is_dataclass(schema):
        known = {field.name for field in dataclasses.fields(schema)}
        for key in map(str, node):
            if key not in known:
                raise unknown_key(f"{prefix}{key}", schema)
    for key in map(str, node):
        if OmegaConf.is_missing(node, key):
            raise RequestError("has no value", key=f"{prefix}{key}", value="???", instead=f"{prefix}{key}=...")
        child = None if OmegaConf.is_interpolation(node, key) else node[key]
        if isinstance(child, DictConfig):
            _refuse_unknown(child, OmegaConf.get_type(child), f"{prefix}{key}.")
