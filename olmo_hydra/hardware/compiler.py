"""The compiler with the options of the config, which it may not know."""

import re

import jax

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig


def compiled(lowered: jax.stages.Lowered, cfg: HardwareConfig, **more: str | bool) -> jax.stages.Compiled:
    """The executable of a program, by `hardware.compiler_options` and `more` options.

    Raises:
      RequestError: The compiler does not take one of them.
    """
    options: dict[str, str | bool] = {**cfg.compiler_options, **more}
    try:
        return lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if not re.search(r"No such compile option|into flag", str(error)):
            raise
        raise RequestError(
            f"the compiler of {cfg.platform.value} refuses them: {str(error).splitlines()[0][:200]}",
            key="hardware.compiler_options",
            value=cfg.compiler_options,
            instead="options that this back end knows; ~hardware.compiler_options.NAME drops one",
        ) from error
