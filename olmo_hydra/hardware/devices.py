"""The devices a config asks for, or one message that says what is there instead."""

import jax

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig, Platform


def acquire(cfg: HardwareConfig, command: str) -> list[jax.Device]:
    """The first `cfg.devices` devices of the platform. Several CPU devices are simulated on the same cores.

    Args:
      cfg: The hardware group.
      command: The overrides as typed, for the commands that the error suggests.

    Raises:
      RequestError: The platform, the kind of device or their number is not what the config wants.
    """
    assert cfg.devices is not None
    configure(cfg)
    try:
        devices = jax.devices(cfg.platform.value)
    except RuntimeError:
        devices = []
    kind_is_right = cfg.device_kind is None or all(device.device_kind == cfg.device_kind for device in devices)
    if len(devices) >= cfg.devices and kind_is_right and (cfg.processes == 1 or len(devices) == cfg.devices):
        return in_order(devices[: cfg.devices])
    found = devices or jax.devices()
    raise RequestError(
        f"wants {_count(cfg.devices, cfg.platform.value, cfg.device_kind)}; "
        f"found {_count(len(found), found[0].platform, found[0].device_kind)}",
        key="hardware",
        value=cfg.name,
        instead=f"to check the run without it: olmo-hydra preflight {command}\n"
        f"           to launch it where it is:   srun --ntasks={cfg.processes} python train.py {command}\n"
        "           to train here:              hardware=cpu",
    )


def in_order(devices: list[jax.Device]) -> list[jax.Device]:
    """Devices as they lie along the mesh: those of a process side by side."""
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def describe(devices: list[jax.Device]) -> dict[str, object]:
    """What a start records about its devices."""
    processes = len({device.process_index for device in devices})
    described = {"count": len(devices), "platform": devices[0].platform, "kind": devices[0].device_kind}
    return described | {"processes": processes}


def configure(cfg: HardwareConfig) -> None:
    """Has JAX simulate this process's part of CPU devices. Before processes meet: JAX looks for its back ends then."""
    if cfg.platform is not Platform.cpu:
        return
    assert cfg.devices is not None and cfg.processes is not None
    count = cfg.devices // cfg.processes
    jax.config.update("jax_platforms", "cpu")
    try:
        if jax.config.values["jax_num_cpu_devices"] < count:
            jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # the back end of this process exists already; `acquire` counts what it has
        return


def _count(number: int, platform: str, kind: str | None) -> str:
    return f"{number} {platform} device{'s' if number != 1 else ''}" + (
        f" ({kind})" if kind and kind != platform else ""
    )
