"""Turns every way in which a request can be wrong into one `RequestError`."""

import re
from collections.abc import Sequence

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from olmo_hydra.config.errors import RequestError, show
from olmo_hydra.config.origin import display, origin
from olmo_hydra.config.paths import CONF
from olmo_hydra.config.root import Config
from olmo_hydra.config.suggest import choices, nearest, unknown_key

NO_SUCH_GROUP = re.compile(
    r"Could not override '([^'.]+)'|config group '([^'.]+)' does not|Could not delete from config\. '(.+)'"
    r"|Invalid Defaults List override '/(\w+)"  # the first one's wording in Hydra 1.4
)
WRONG_VALUE = re.compile(
    r"(?:Invalid value|Value) '(.*?)'(?: of type '\w+')?(?:, expected one of \[(.*)\]| could not be converted to (\w+))"
)


def explain(error: Exception, arguments: Sequence[str]) -> RequestError | None:
    """The request error behind `error`, or None if it is not about the request.

    Args:
      error: What composing, resolving or running raised.
      arguments: The command line, without the program.
    """
    if isinstance(error, RequestError):
        if error.where is None and error.key is not None:
            error.where = origin(error.key, arguments)
        return error
    if isinstance(error, UnicodeDecodeError) and (file := _not_text()):
        return RequestError("the file is not UTF-8 text", where=display(file))
    if isinstance(error, yaml.MarkedYAMLError):
        return _unreadable_yaml(error)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, arguments)
    if isinstance(error, OverrideParseException):
        return _unreadable_override(error, arguments)
    cause = next(
        (e for e in (error, error.__cause__, error.__context__) if isinstance(e, OmegaConfBaseException)), None
    )
    if cause is not None:
        return _bad_value(cause, _where(error, cause, arguments))
    if isinstance(error, ConfigCompositionException):
        return _bad_override(error, arguments)
    if isinstance(error, HydraException):
        return RequestError(" ".join(str(error).split())[:400])
    return None


def _unreadable_yaml(error: yaml.MarkedYAMLError) -> RequestError:
    mark = error.problem_mark
    where = None if mark is None else f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
    return RequestError(f"the file is not valid YAML: {error.problem}", where=where)


def _not_text() -> str | None:
    """The config that cannot be decoded: the error itself does not say."""
    for file in CONF.rglob("*.yaml"):
        try:
            file.read_text("utf-8")
        except UnicodeDecodeError:
            return str(file.relative_to(CONF).with_suffix(""))
    return None


def _missing_option(error: MissingConfigException, arguments: Sequence[str]) -> RequestError:
    found = re.search(r"Could not find '(?:(.+)/)?([^/']+)'", str(error))
    if found is None or found[1] is None:
        return RequestError(" ".join(str(error).split())[:400])
    group, option = found[1], found[2]
    options = [o for o in re.findall(r"^\t(\S+)$", str(error), re.MULTILINE) if not o.startswith("base_")]
    close = nearest(option, options)
    instead = f"{group}={close}" if close else f"one of the options of {group}: {choices(options)}"
    return RequestError(
        "there is no such option", key=group, value=option, where=origin(group, arguments), instead=instead
    )


def _unreadable_override(error: OverrideParseException, arguments: Sequence[str]) -> RequestError:
    override = next((a for a in arguments if error.override and a == error.override), error.override)
    if override and "=" not in override:
        return RequestError(
            "an override has the form key=value",
            key=override,
            where=f"command line: {override}",
            instead=f"{override}=...",
        )
    return RequestError(
        "the override cannot be read: " + str(error).splitlines()[0],
        where=f"command line: {override}",
        instead="""key=value; where the value holds commas, brackets, spaces or ~: 'key="value"'""",
    )


def _ranges(typed: str) -> str:
    """A flat list as the ranges that may have been meant: two items are the ends of one, any other is one by itself."""
    items = re.findall(r"[^\[\],\s]+", typed)
    return show([items] if len(items) == 2 else [[item, item] for item in items])


def _bad_value(cause: OmegaConfBaseException, where: str | None) -> RequestError:
    key = re.sub(r"\[\d+\]$", "", cause.full_key or "")
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return unknown_key(key, cause.object_type or Config, where)
    message = str(cause).splitlines()[0].removeprefix("Merge error: ")
    if isinstance(cause, InterpolationResolutionError):
        return RequestError(
            message, key=key or None, where=where, instead="a value, or an interpolation of a key that exists"
        )
    if "is not a subclass of" in message:
        return RequestError("is a group of keys, not a value", key=key, where=where, instead=_as_node(where, key))
    typed = re.fullmatch(r"command line: ([\w.]+)=(\[.*\])", where or "")
    if "is not a ListConfig" in message and not key and typed:  # of an item OmegaConf does not say where it stands
        return RequestError("is a list of lists", key=typed[1], where=where, instead=f"{typed[1]}={_ranges(typed[2])}")
    if "is not a ListConfig" in message:
        return RequestError("is a list", key=key, where=where, instead=f"{key}=[VALUE,VALUE]")
    if "does not support deletion" in message:
        return RequestError("cannot be removed: every run has it", key=key, where=where, instead=f"{key}=VALUE")
    if "not Optional" in message:
        return RequestError("needs a value", key=key, value=None, where=where)
    wrong = WRONG_VALUE.match(message)
    if wrong is None:
        return RequestError(message, key=key, where=where)
    value, options, kind = wrong.groups()
    if options is not None:
        known = options.split(", ")
        close = nearest(value, known)
        hint = f"{key}={close}" + (f" (of {options})" if len(known) > 1 else "") if close else f"one of {options}"
        return RequestError("there is no such value", key=key, value=value, where=where, instead=hint)
    wanted = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
    is_steps = key.rpartition(".")[2] in ("warmup_steps", "decay_steps", "steps", "horizon", "every")
    return RequestError(
        "has the wrong type",
        key=key,
        value=value,
        where=where,
        instead=wanted.get(kind, kind) + (" of steps (a fraction of the run is not accepted)" if is_steps else ""),
    )


def _as_node(where: str | None, key: str) -> str:
    added = re.match(rf"command line: \+(.+)\.({re.escape(key)})[.=]", where or "")
    return f"'+{added[1]}={{{added[2]}: {{key: value}}}}'" if added else f"{key}.KEY=VALUE"


def _bad_override(error: ConfigCompositionException, arguments: Sequence[str]) -> RequestError:
    message = str(error)
    sweep = re.match(r"Ambiguous value for argument '((.+?)=(.+))'|Sweep parameters '((.+?)=(.+))'", message)
    if sweep:
        override, key, values = sweep[1] or sweep[4], sweep[2] or sweep[5], sweep[3] or sweep[6]
        return RequestError(
            "several values are a sweep",
            key=key,
            value=values,
            instead=f"-m {override}, or {key}=[{values}] for a list",
        )
    exists = re.search(r"An item is already at '(.+)'", message)
    if exists:
        key = exists[1]
        return RequestError(
            "the key exists already: + is for new ones",
            key=key,
            where=origin(key, arguments),
            instead=f"{key}=... without the +",
        )
    group = NO_SUCH_GROUP.search(message)
    if group:
        key = next(name for name in group.groups() if name)
        in_file = re.match(r"In '(.+?)'", message)
        return unknown_key(key.partition("@")[0], Config, display(in_file[1]) if in_file else origin(key, arguments))
    return RequestError(" ".join(message.split())[:400])


def _where(error: Exception, cause: OmegaConfBaseException, arguments: Sequence[str]) -> str | None:
    """The file that Hydra names, else the override, else the file that sets the key."""
    in_file = re.match(r"In '(.+?)'", str(error))
    if in_file and (CONF / f"{in_file[1]}.yaml").exists():
        return display(in_file[1])
    override = re.match(r"Error merging override (.+)", str(error))
    if override and override[1] in arguments:
        return f"command line: {override[1]}"
    if not cause.full_key:  # an interpolation on the command line
        return next((f"command line: {argument}" for argument in arguments if "${" in argument), None)
    return origin(re.sub(r"\[\d+\]$", "", cause.full_key), arguments)
