"""What Hydra lets pass without a word on a command line, refused before it starts."""

import re
from collections.abc import Sequence

import yaml

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.paths import CONF

OPTION = re.compile(r"""(?!(null|true|false|nan|inf)$)[A-Za-z_\[{'"]""", re.IGNORECASE)


def refuse_silent_mistakes(overrides: Sequence[str]) -> None:
    """Refuses an override without a key, a group's option that is no name, and `+group=option` beside another option.

    Raises:
      RequestError: The first of them.
    """
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    groups = {name for entry in defaults if isinstance(entry, dict) for name in entry}
    for override in overrides:
        key, _, value = override.partition("=")
        where = f"command line: {override}"
        if not key.strip("+~"):
            raise RequestError("the override has no key", where=where, instead="key=value")
        if key in groups and not OPTION.match(value):
            raise RequestError(
                "an option is a name",
                key=key,
                value=value,
                where=where,
                instead=f"the name of a file in conf/{key}, or ~{key} for none",
            )
        if key.startswith("+") and key.lstrip("+") in groups:
            name = key.lstrip("+")
            raise RequestError(
                "the group has an option already: + is for new keys", key=name, where=where, instead=f"{name}={value}"
            )
