"""`olmo-hydra preflight`: what a run will take, from arithmetic alone. Needs neither the hardware nor JAX."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from olmo_hydra.cli.say import say
from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.identity import run_name
from olmo_hydra.config.root import Config
from olmo_hydra.hardware import roofline
from olmo_hydra.hardware.activations import activation_bytes_per_device, host_bytes_per_device
from olmo_hydra.hardware.advice import advice
from olmo_hydra.hardware.flops import train_flops_per_token
from olmo_hydra.hardware.memory import others_keys_bytes, state_bytes_per_device

MFU = 0.4  # at which time and cost are given as well: a rate that such runs have been seen to reach


def run(overrides: list[str], as_json: bool, over: str | None) -> None:
    """Prints the facts of the run that `python train.py <overrides>` would start; with `over`, of it on each of these
    topologies (4x4x4) or numbers of chips, separated by commas."""
    if over is not None:
        found = [facts(compose([*overrides, each])) for each in _scales(over)]
        if as_json:
            print(json.dumps(found))
        else:
            _show_table(found)
        return
    only = facts(compose(overrides))
    if as_json:
        print(json.dumps(only))
    else:
        say("\n".join(lines(only)) + "\n")


def refuse_together(*, compile: bool, over: str | None, fit: bool, sweep: str | None, out: Path | None) -> None:
    """Raises RequestError unless these options go together."""
    one_file = "takes the name of one file of sweeps/, without .yaml"
    one_topology = "--over without --compile; or --compile with one: hardware.topology=4x4x4"
    one_cell = f"--compile --sweep {sweep}, and then --compile --fit with the overrides of a cell that does not fit"
    plotted = f"--compile --sweep head_dim --out {out}"
    wrong = [
        (over is not None and compile, "--over", "is about several topologies, --compile compiles one", one_topology),
        (fit and not compile, "--fit", "goes with --compile", "--compile --fit"),
        (sweep is not None and not re.fullmatch(r"[\w-]+", sweep), "--sweep", one_file, "--compile --sweep head_dim"),
        (sweep is not None and not compile, "--sweep", "goes with --compile", f"--compile --sweep {sweep}"),
        (fit and sweep is not None, "--fit", "is about one run, --sweep about several", one_cell),
        (out is not None and sweep is None, "--out", "goes with --sweep, which draws a plot", plotted),
    ]
    for found, key, problem, instead in wrong:
        if found:
            raise RequestError(problem, key=key, instead=instead)


def _scales(over: str) -> list[str]:
    scales = [each.strip() for each in over.split(",") if each.strip()]
    if not scales:
        raise RequestError("names no topology", key="--over", value=over, instead="--over 2x2x1,4x4x4 or --over 4,64")
    return [f"hardware.{'topology' if 'x' in each else 'chips'}={each}" for each in scales]


def facts(config: Config) -> dict[str, Any]:
    """Parameters, FLOPs, batch, memory, the bound on speed and what it costs; sizes in bytes, times in seconds.

    `None` where a hardware file does not say what it takes.
    """
    model, hardware, train = config.model, config.hardware, config.train
    assert train.steps is not None and train.tokens is not None and hardware.devices is not None
    exact = train_flops_per_token(model, config.data.seq_len)
    causal = train_flops_per_token(model, config.data.seq_len, window_exact=False)
    accumulation = hardware.accumulation(train.global_batch)
    peak, hbm = (hardware.chip.of_device(name) for name in ("peak_tflops", "hbm_gib"))
    per_device = flops_per_device_and_update(config)
    ideal = None if peak is None else per_device / (peak * 1e12)
    return {
        "run": run_name(config),
        "hardware": hardware.name,
        "parameters": model.num_params,
        "active_parameters": model.num_params,
        "parameters_without_input_table": model.num_params_without_input_table,
        "updates": train.steps,
        "tokens": train.tokens,
        "tokens_per_update": train.tokens // train.steps,
        "slices": hardware.slices,
        "topology": hardware.topology,
        "chips": hardware.chips,
        "devices": hardware.devices,
        "processes": hardware.processes,
        "mesh": hardware.mesh.sizes,
        "accumulation": accumulation,
        "instances_per_device_and_micro_batch": hardware.instances_at_once(train.global_batch),
        "train_flops_per_token": exact,
        "train_flops_per_token_full_causal": causal,
        "train_flops_per_device_and_update": per_device,
        "train_flops_per_device_and_update_full_causal": per_device * causal / exact,
        "train_flops": exact * train.tokens,
        "state_bytes_per_device": state_bytes_per_device(config),
        "tokens_of_an_instance_per_device": config.data.seq_len // hardware.mesh.context,
        "keys_of_others_bytes_per_device": {
            kind.value: others_keys_bytes(config, kind) for kind in model.window_pattern
        },
        "activation_bytes_per_device": activation_bytes_per_device(config),
        "host_bytes_per_device": host_bytes_per_device(config),
        "hbm_bytes_per_device": None if hbm is None else int(hbm * 2**30),
        "bound": _bound(config, ideal),
        "at_40_percent_mfu": None if ideal is None else cost(config, ideal / MFU),
        "advice": [asdict(each) for each in advice(config)],
    }


def _bound(config: Config, ideal: float | None) -> dict[str, Any] | None:
    """The roofline of an update, by part and in all; `ideal`: its seconds at the peak rate."""
    found, rates = roofline.parts(config), roofline.rates(config.hardware)
    bound = roofline.bound(found, rates)
    if bound is None or ideal is None:
        return None
    parts = []
    for part in found:
        seconds, by = rates.seconds(part) or (0.0, "")
        parts.append({**asdict(part), "seconds": seconds, "bound_by": by})
    return {
        "parts": parts,
        "seconds_computing": bound.computing,
        "seconds_sending": bound.sending,
        "mfu": ideal / bound.overlapped,
        "mfu_without_overlap": ideal / bound.in_turns,
        **cost(config, bound.overlapped),
    }


def flops_per_device_and_update(config: Config) -> float:
    """Of the model, window-exact, recomputation not counted."""
    train, devices = config.train, config.hardware.devices
    assert train.steps is not None and train.tokens is not None and devices is not None
    return train_flops_per_token(config.model, config.data.seq_len) * (train.tokens // train.steps) / devices


def cost(config: Config, seconds_per_update: float) -> dict[str, float | None]:
    """What the whole run takes at so many seconds an update."""
    hardware, train = config.hardware, config.train
    assert train.steps is not None and train.tokens is not None and hardware.devices and hardware.chips
    hours = train.steps * seconds_per_update / 3600
    price = hardware.chip.price_per_hour
    return {
        "seconds_per_update": seconds_per_update,
        "tokens_per_second_and_device": train.tokens / train.steps / seconds_per_update / hardware.devices,
        "days": hours / 24,
        "chip_hours": hours * hardware.chips,
        "cost": None if price is None else hours * hardware.chips * price,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The facts for people."""
    shape = f" as {found['topology']}" if found["topology"] else ""
    shape += f" in each of {found['slices']} slices" if found["slices"] > 1 else ""
    return [
        f"run             {found['run']}",
        f"parameters      {found['parameters']:,} "
        f"({found['parameters_without_input_table']:,} without the input table), all active",
        f"horizon         {found['updates']:,} updates of {found['tokens_per_update']:,} tokens: "
        f"{found['tokens']:,} tokens",
        f"hardware        {found['hardware']}: {found['chips']:,} chip{'s' * (found['chips'] > 1)}{shape}, "
        f"{found['devices']:,} device{'s' * (found['devices'] > 1)}, {found['processes']:,} "
        f"process{'es' * (found['processes'] > 1)}",
        "mesh            " + " x ".join(f"{axis}={n}" for axis, n in found["mesh"].items()),
        f"batch           {found['instances_per_device_and_micro_batch']} instances a device, "
        f"{found['accumulation']} micro-batches an update",
        *_context_line(found),
        f"FLOPs a token   {found['train_flops_per_token']:.4g} "
        f"(every layer counted as fully causal: {found['train_flops_per_token_full_causal']:.4g})",
        f"FLOPs in all    {found['train_flops']:.4g}; of a device "
        f"{found['train_flops_per_device_and_update']:.4g} an update "
        f"({found['train_flops_per_device_and_update_full_causal']:.4g})",
        *_memory_lines(found),
        *_bound_lines(found["bound"]),
        *_time_lines(found),
        *(f"advice          {each['finding']}\n                -> {_instead(each)}" for each in found["advice"]),
    ]


def _memory_lines(found: dict[str, Any]) -> list[str]:
    parts = {"parameters and moments": found["state_bytes_per_device"], **found["activation_bytes_per_device"]}
    hbm, on_host = found["hbm_bytes_per_device"], found["host_bytes_per_device"]
    room = "memory of the device unknown" if hbm is None else f"of {hbm / 2**30:.1f} GiB"
    return [
        f"memory          about {sum(parts.values()) / 2**30:.3g} GiB a device at the fullest, {room}:",
        *(f"  {name:<24} {size / 2**30:8.3f} GiB" for name, size in parts.items()),
        *([f"  and on its host {on_host / 2**30:17.3f} GiB"] if on_host else []),
    ]


def _context_line(found: dict[str, Any]) -> list[str]:
    if found["mesh"]["context"] == 1:
        return []
    others = ", ".join(
        f"{size / 2**30:.3g} GiB in a {kind} layer" for kind, size in found["keys_of_others_bytes_per_device"].items()
    )
    return [
        f"context         {found['tokens_of_an_instance_per_device']:,} tokens of an instance a device; keys and "
        f"values of other devices: {others}"
    ]


def _bound_lines(bound: dict[str, Any] | None) -> list[str]:
    if bound is None:
        return ["speed           a rate of the device is unknown, so that there is no bound"]
    lines = ["an update on one device takes at least:"]
    for part in bound["parts"]:
        work = [f"{part['flops'] / 1e12:,.1f} TFLOP"] if part["flops"] else []
        work += [f"{part['moved'] / 1e9:,.1f} GB moved"] if part["moved"] else []
        work += [f"{part['sent'] / 1e9:,.1f} GB sent"] if part["sent"] else []
        work += [f"{part['crossing'] / 1e9:,.1f} GB by the network"] if part["crossing"] else []
        work += [f"matrix unit {part['fill']:.0%} full"] if part["fill"] < 0.995 else []
        lines.append(f"  {part['name']:<18} {part['seconds']:8.3f} s by {part['bound_by']:<10}  {', '.join(work)}")
    return [
        *lines,
        f"  {'in all':<18} {bound['seconds_per_update']:8.3f} s with all sending behind the computing, "
        f"{bound['seconds_computing'] + bound['seconds_sending']:.3f} s in turns",
        f"speed at best   {bound['mfu']:.1%} MFU ({bound['mfu_without_overlap']:.1%} in turns), "
        f"{bound['tokens_per_second_and_device']:,.0f} tokens/s a device",
    ]


def _time_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for title, cost in (("time at best", found["bound"]), ("at 40 % MFU", found["at_40_percent_mfu"])):
        if cost is not None:
            price = "" if cost["cost"] is None else f", cost {_amount(cost['cost'])}"
            lines.append(f"{title:<15} {_amount(cost['days'])} days, {_amount(cost['chip_hours'])} chip-hours{price}")
    return lines or ["time            peak of the device unknown"]


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _instead(each: dict[str, Any]) -> str:
    return each["instead"] + (" (another experiment)" if each["changes_the_run"] else "")


def _show_table(found: Sequence[dict[str, Any]]) -> None:
    """One line a topology."""
    table = Table(box=None, pad_edge=False)
    for name in ("topology", "chips", "devices", "mesh", "batch", "state", "MFU at best", "days", "chip-hours", "cost"):
        table.add_column(name, justify="left" if name in ("topology", "mesh") else "right", no_wrap=True)
    for each in found:
        bound: dict[str, Any] = each["bound"] or dict.fromkeys(("mfu", "days", "chip_hours", "cost"))
        shown = (("mfu", "{:.1%}".format), ("days", _amount), ("chip_hours", _amount), ("cost", _amount))
        table.add_row(
            each["topology"] or "-",
            f"{each['chips']:,}",
            f"{each['devices']:,}",
            "x".join(str(size) for size in each["mesh"].values()),
            f"{each['instances_per_device_and_micro_batch']} x {each['accumulation']}",
            f"{each['state_bytes_per_device'] / 2**30:.3g} GiB",
            *("-" if bound[name] is None else form(bound[name]) for name, form in shown),
        )
    console = Console(highlight=False)
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    Console(highlight=False, width=needed).print(table)
