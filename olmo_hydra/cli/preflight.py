"""`olmo-hydra preflight`: what a run will take, from arithmetic alone. Needs neither the hardware nor JAX."""

import json
from typing import Any

from olmo_hydra.config.compose import compose
from olmo_hydra.config.hardware import MESH_AXES
from olmo_hydra.config.identity import run_name
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.flops import train_flops_per_token
from olmo_hydra.hardware.memory import state_bytes_per_device


def run(overrides: list[str], as_json: bool) -> None:
    """Prints the facts of the run that `python train.py <overrides>` would start."""
    found = facts(compose(overrides))
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))


def facts(config: Config) -> dict[str, Any]:
    """Parameters, FLOPs, batch and state memory; sizes in bytes, `None` where a hardware file does not say."""
    model, hardware, train = config.model, config.hardware, config.train
    assert train.steps is not None and train.tokens is not None
    exact = train_flops_per_token(model, config.data.seq_len)
    causal = train_flops_per_token(model, config.data.seq_len, window_exact=False)
    accumulation = hardware.accumulation(train.global_batch)
    peak = None if hardware.peak_tflops is None else hardware.peak_tflops * 1e12 * hardware.devices
    return {
        "run": run_name(config),
        "parameters": model.num_params,
        "parameters_without_input_table": model.num_params_without_input_table,
        "updates": train.steps,
        "tokens": train.tokens,
        "tokens_per_update": train.tokens // train.steps,
        "devices": hardware.devices,
        "mesh": {axis: getattr(hardware.mesh, axis) for axis in MESH_AXES},
        "accumulation": accumulation,
        "instances_per_device_and_micro_batch": train.global_batch // (hardware.batch_shards * accumulation),
        "train_flops_per_token": exact,
        "train_flops_per_token_full_causal": causal,
        "train_flops": exact * train.tokens,
        "state_bytes_per_device": state_bytes_per_device(config),
        "hbm_bytes_per_device": None if hardware.hbm_gib is None else int(hardware.hbm_gib * 2**30),
        "days_at_40_percent_mfu": None if peak is None else exact * train.tokens / (0.4 * peak) / 86400,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    hbm = found["hbm_bytes_per_device"]
    room = "memory of the device unknown" if hbm is None else f"of {hbm / 2**30:.1f} GiB"
    days = found["days_at_40_percent_mfu"]
    return [
        f"run             {found['run']}",
        f"parameters      {found['parameters']:,} "
        f"({found['parameters_without_input_table']:,} without the input table)",
        f"horizon         {found['updates']:,} updates of {found['tokens_per_update']:,} tokens: "
        f"{found['tokens']:,} tokens",
        f"devices         {found['devices']} as " + " x ".join(f"{axis}={n}" for axis, n in found["mesh"].items()),
        f"batch           {found['instances_per_device_and_micro_batch']} instances a device, "
        f"{found['accumulation']} micro-batches an update",
        f"FLOPs a token   {found['train_flops_per_token']:.4g} "
        f"(every layer counted as fully causal: {found['train_flops_per_token_full_causal']:.4g})",
        f"FLOPs in all    {found['train_flops']:.4g}",
        f"state           {found['state_bytes_per_device'] / 2**30:.3g} GiB a device, {room} "
        "(activations and logits not counted)",
        "time            peak of the device unknown"
        if days is None
        else f"time            {days:.3g} days at 40 % MFU",
    ]
