"""Registers a schema class under the option name that YAML files inherit from.

`@schema("optim", "adamw")` makes the class available to `conf/optim/*.yaml` as `defaults: [base_adamw]`. A group with a
single schema registers it under the group's own name (`base_model`).
"""

from collections.abc import Callable
from typing import TypeVar

from hydra.core.config_store import ConfigStore

Schema = TypeVar("Schema", bound=type)

NO_SCIENCE = {"science": False}  # metadata of a field in a science group that changes no number


def schema(group: str, name: str | None = None) -> Callable[[Schema], Schema]:
    """Class decorator: registers a dataclass as `base_<name or group>` of the config group."""

    def register(cls: Schema) -> Schema:
        ConfigStore.instance().store(group=group, name=f"base_{name or group}", node=cls, provider="olmo_hydra")
        return cls

    return register
