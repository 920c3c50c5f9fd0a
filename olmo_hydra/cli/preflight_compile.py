"""`olmo-hydra preflight --compile`: the update of a run, compiled for its TPUs on this machine, and what that tells."""

import json
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax

from olmo_hydra.cli import preflight
from olmo_hydra.cli.say import say
from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RunFailed
from olmo_hydra.config.remat import Remat
from olmo_hydra.config.root import Config
from olmo_hydra.hardware import ahead, fit, roofline
from olmo_hydra.hardware.ahead import Compiled, OutOfMemory
from olmo_hydra.train.lowering import lower_for

INDENT = " " * 16
COVERS = (
    "The compiler's cycles are its own estimate of each operation by itself, times the trips of its loops. Pallas "
    "kernels have none: attention is added by the roofline model instead, which assumes that narrow heads take whole "
    "matrix units. Collectives have none either: what they send is divided by the bandwidth of the links or, "
    "between slices, of the network. Nothing of this was measured on the hardware."
)


def run(overrides: list[str], as_json: bool, fits: bool) -> None:
    """Prints what preflight says without compiling, and then what the compiler says; with `fits`, the smallest change
    with which a run fits a device's memory that does not.

    Raises:
      RequestError: Nothing can be compiled for the hardware on this machine.
      RunFailed: The run does not fit.
    """
    config = compose(overrides)
    devices, known = ahead.devices(config.hardware), preflight.facts(config)
    if not as_json:  # the compiler takes minutes
        say("\n".join(preflight.lines(known)))
        sys.stdout.flush()
    compiled = answer(config, devices)
    if fits and not compiled["fits"] and compiled["out_of"] == "hbm":
        compiled["fit"] = _search(overrides, devices)
    if as_json:
        print(json.dumps(known | {"compiled": compiled}))
    else:
        say("\n".join(_lines(compiled)) + "\n")
    if not compiled["fits"]:
        searched = "; --fit searches for a device's memory only" if fits and compiled["out_of"] == "vmem" else ""
        raise RunFailed(verdict(compiled) + searched)


def answer(config: Config, devices: list[jax.Device]) -> dict[str, Any]:
    """What the compiler says of the update of a run, on these devices (`ahead.devices`) of its hardware. In bytes."""
    hardware = config.hardware
    head = {"target": f"{hardware.libtpu}:{hardware.topology}", "devices": len(devices)}
    began = time.perf_counter()
    lowered = lower_for(config, devices)
    head["seconds_lowering"] = time.perf_counter() - began
    try:
        compiled = ahead.compile_for(lowered, hardware)
    except OutOfMemory as out:
        change = fit.in_hbm(config) if out.memory == "hbm" else fit.in_vmem(config, out.needed)
        return head | {
            "fits": False,
            "out_of": out.memory,
            "needed": out.needed,
            "available": out.available,
            "missing": out.needed - out.available,
            "instead": change,
        }
    there = ahead.available(devices[0])
    return head | {
        "fits": True,
        "seconds_compiling": compiled.seconds,
        "cpu_seconds_compiling": compiled.cpu_seconds,
        "memory": {
            "arguments": compiled.arguments,
            "results": compiled.results,
            "temporaries": compiled.temporaries,
            "code": compiled.code,
            "needed": compiled.needed,
            "available": there,
            "left": there - compiled.needed,
        },
        "cycles": compiled.estimate.cycles,
        "collectives": _collectives(compiled),
        "kernels": [asdict(each) for each in compiled.estimate.kernels],
        "unestimated": [asdict(each) for each in compiled.estimate.unestimated],
        "loops": [asdict(each) for each in compiled.estimate.loops],
        "update": _update(config, compiled),
        "covers": COVERS,
    }


def _collectives(compiled: Compiled) -> list[dict[str, Any]]:
    """Collectives of a kind and part of the program together: how often an update runs them, and their bytes in all."""
    groups: dict[tuple[str, str, int, bool], list[Any]] = defaultdict(list)
    for each in compiled.estimate.collectives:
        groups[each.kind, each.part, each.devices, each.over_slices].append(each)
    return [
        {
            "kind": kind,
            "part": part,
            "devices": devices,
            "over_slices": over_slices,
            "times": sum(one.times for one in alike),
            "bytes": sum(one.size * one.times for one in alike),
            "sent": sum(one.sent for one in alike),
        }
        for (kind, part, devices, over_slices), alike in groups.items()
    ]


def _update(config: Config, compiled: Compiled) -> dict[str, Any] | None:
    """How long an update takes by the estimate; None where the hardware file lacks a number that it takes."""
    rates, clock = roofline.rates(config.hardware), config.hardware.chip.clock_ghz
    attention = rates.seconds(next(part for part in roofline.parts(config) if part.name == "attention"))
    sending = _seconds_sending(compiled, rates)
    if clock is None or attention is None or rates.flops is None or sending is None:
        return None
    cycles = sum(compiled.estimate.cycles.values()) / (clock * 1e9)
    kernels = attention[0] if compiled.estimate.kernels else 0.0  # attention by XLA is among the cycles
    bound = roofline.Bound(cycles + kernels, sending)
    ideal = preflight.flops_per_device_and_update(config) / rates.flops
    return {
        "seconds_of_cycles": cycles,
        "seconds_of_kernels_by_roofline": kernels,
        "seconds_sending": sending,
        "seconds_in_turns": bound.in_turns,
        "mfu": ideal / bound.overlapped,
        "mfu_without_overlap": ideal / bound.in_turns,
        **preflight.cost(config, bound.overlapped),
    }


def _seconds_sending(compiled: Compiled, rates: roofline.Rates) -> float | None:
    """Of all collectives, one after the other, by the links of a slice or the network between slices."""
    seconds = 0.0
    for one in compiled.estimate.collectives:
        rate = rates.network if one.over_slices else rates.links
        if rate is None:
            return None
        seconds += one.sent / rate
    return seconds


def _search(overrides: Sequence[str], devices: list[jax.Device]) -> dict[str, Any] | None:
    """The smallest change with which the run fits, and the compiler's answer to it; None: with none."""
    tried: dict[tuple[Remat, int], dict[str, Any]] = {}

    def typed(remat: Remat, micro_batch: int) -> list[str]:
        return [f"hardware.remat={remat.value}", f"hardware.micro_batch={micro_batch}"]

    def fits(remat: Remat, micro_batch: int) -> bool:
        found = tried[remat, micro_batch] = answer(compose([*overrides, *typed(remat, micro_batch)]), devices)
        return bool(found["fits"])

    change = fit.smallest_change(compose(overrides), fits)
    if change is None:
        return None
    return {"instead": " ".join(typed(*change)), "tried": len(tried), "compiled": tried[change]}


def verdict(found: dict[str, Any]) -> str:
    """How much is missing, and of what, of an answer that does not fit."""
    memory = "a device's memory" if found["out_of"] == "hbm" else "a kernel's scoped memory on the chip (VMEM)"
    return (
        f"does not fit: needs {_size(found['needed'])} of {memory}, which has {_size(found['available'])}: "
        f"{_size(found['missing'])} too much"
    )


def _lines(found: dict[str, Any]) -> list[str]:
    where = f"for {found['target']}, {found['devices']:,} devices"
    if not found["fits"]:
        return [f"compiled        {where}: {verdict(found)}", *_change_lines(found)]
    memory = found["memory"]
    parts = ", ".join(f"{name} {_size(memory[name])}" for name in ("arguments", "results", "temporaries", "code"))
    return [
        f"compiled        {where}, in {found['seconds_compiling']:.0f} s ({found['cpu_seconds_compiling']:.0f} of CPU "
        f"cores), after {found['seconds_lowering']:.1f} s of tracing",
        f"memory          fits: {_size(memory['needed'])} of {_size(memory['available'])} a device, "
        f"{_size(memory['left'])} left",
        f"                {parts}",
        "the compiler's estimate of an update on one device:",
        *(f"  {part:<21} {cycles:>16,} cycles" for part, cycles in sorted(found["cycles"].items())),
        *(
            f"  {each['kind']:<21} {each['times']:>16,} times, {each['sent'] / 1e9:,.2f} GB sent among "
            f"{each['devices']} {'slices' if each['over_slices'] else 'devices'}: {each['part']}"
            for each in found["collectives"]
        ),
        *_unestimated_lines(found),
        *_update_lines(found["update"]),
        *textwrap.wrap(found["covers"], 120, initial_indent=INDENT, subsequent_indent=INDENT),
    ]


def _unestimated_lines(found: dict[str, Any]) -> list[str]:
    """Pallas kernels, other work without an estimate, and loops that were counted as one trip."""
    lines = []
    for title, key in (("Pallas kernels", "kernels"), ("no estimate", "unestimated")):
        counts: dict[str, int] = defaultdict(int)
        for each in found[key]:
            counts[each["name"]] += each["times"]
        if counts:
            lines.append(f"{title:<15} {', '.join(f'{name} x {times}' for name, times in counts.items())}")
    unknown = [each["scope"] for each in found["loops"] if each["trips"] is None]
    return lines + ([f"counted once    loops of unknown length: {', '.join(unknown)}"] if unknown else [])


def _update_lines(update: dict[str, Any] | None) -> list[str]:
    if update is None:
        return ["an update       a rate or the clock of the device is unknown, so that there is no time"]
    return [
        f"an update       {_time(update['seconds_of_cycles'])} of cycles and "
        f"{_time(update['seconds_of_kernels_by_roofline'])} of attention by roofline; sending "
        f"{_time(update['seconds_sending'])}",
        f"                {_time(update['seconds_per_update'])} with all sending behind the computing: "
        f"{update['mfu']:.1%} MFU, {update['tokens_per_second_and_device']:,.0f} tokens/s a device; "
        f"{_time(update['seconds_in_turns'])} in turns: {update['mfu_without_overlap']:.1%}",
    ]


def _change_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"                -> {each}" for each in found["instead"]]
    if "fit" not in found:
        return lines + (
            ["                -> --fit searches for the smallest change"] if found["out_of"] == "hbm" else []
        )
    if found["fit"] is None:
        return [*lines, "                does not fit with any hardware.remat and micro-batch: more devices"]
    left = found["fit"]["compiled"]["memory"]["left"]
    return [f"fits            with {found['fit']['instead']}, {_size(left)} left (tried {found['fit']['tried']})"]


def _size(amount: float) -> str:
    return f"{amount / 2**30:.2f} GiB" if abs(amount) >= 2**27 else f"{amount / 2**20:.2f} MiB"


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3f} ms"
