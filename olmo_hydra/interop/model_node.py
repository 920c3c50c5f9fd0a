"""A `ModelConfig` from plain values."""

from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.frozen import refuse_interpolation
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.config.paths import CONF


def model_config(node: dict[str, Any], where: str) -> ModelConfig:
    """The derived and checked model of a node `model`, as a frozen config holds it.

    Raises:
      RequestError: A key is missing or unknown, a value has the wrong type, or a rule is broken. Names `where`.
    """
    refuse_interpolation({"model": node}, where)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(ModelConfig), node)
        for key in map(str, merged):
            if OmegaConf.is_missing(merged, key):
                raise RequestError("has no value", key=f"model.{key}", value="???", where=where)
        model = OmegaConf.to_object(merged)
        assert isinstance(model, ModelConfig)
        model.derive()
        model.check()
    except OmegaConfBaseException as error:
        key = "model" if error.full_key is None else f"model.{error.full_key!s}"
        raise RequestError(str(error).splitlines()[0], key=key, where=where) from error
    except RequestError as error:
        error.where = where
        raise
    return model


def olmo3(changes: dict[str, Any], where: str) -> ModelConfig:
    """Olmo 3 7B with other values, derived and checked. Raises RequestError as `model_config` does."""
    node = yaml.safe_load((CONF / "model" / "olmo3_7b.yaml").read_text())
    del node["defaults"]
    return model_config({**node, **changes}, where)
