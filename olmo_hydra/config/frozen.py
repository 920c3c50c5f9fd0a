"""The parts of a config that a run directory holds, typed again."""

from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from olmo_hydra.config.data import DataConfig
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.root import TrainConfig


def frozen_data(content: dict[str, Any], where: str) -> tuple[DataConfig, TrainConfig]:
    """The nodes `data` and `train` of a frozen config, derived and checked.

    A frozen config does not say which schema its `data` has: it is the one with these keys.

    Raises:
      RequestError: There is none, as where another version of this program froze the config; or a rule is broken.
    """
    data, train = (node if isinstance(node := content.get(name), dict) else {} for name in ("data", "train"))
    if not data:
        raise RequestError("has no node `data`: such a directory holds weights, and has read nothing", where=where)
    refuse_interpolation({"data": data, "train": train}, where)
    store = ConfigStore.instance()
    schemas = [store.load(f"data/{name}").node for name in store.list("data")]
    of_these_keys = [schema for schema in schemas if set(schema) == set(data)]
    if len(of_these_keys) != 1:
        raise RequestError(
            "its data has other keys than any data of this version", where=where, instead="the version that froze it"
        )
    try:
        typed = OmegaConf.to_object(OmegaConf.merge(of_these_keys[0], data))
        cut = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), train))
        assert isinstance(typed, DataConfig) and isinstance(cut, TrainConfig)
        cut.check()
        typed.derive(cut.seed)
        typed.check()
        cut.derive(typed.seq_len)
    except OmegaConfBaseException as error:
        raise RequestError(str(error).splitlines()[0], key=error.full_key, where=where) from error
    except RequestError as error:
        error.where = where
        raise
    return typed, cut


def refuse_interpolation(node: Any, where: str, key: str = "") -> None:
    """Raises RequestError where a frozen value would be looked up: in the environment of who reads it, for one."""
    if isinstance(node, dict):
        for name, value in node.items():
            refuse_interpolation(value, where, f"{key}.{name}".strip("."))
    elif isinstance(node, list):
        for value in node:
            refuse_interpolation(value, where, key)
    elif isinstance(node, str) and "${" in node:
        problem = "is an interpolation, and a frozen config holds values"
        raise RequestError(problem, key=key, value=node, where=where, instead="the value itself")
