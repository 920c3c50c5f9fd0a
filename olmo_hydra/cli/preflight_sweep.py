"""`olmo-hydra preflight --compile --sweep NAME`: the cells of an ablation by the compiler's estimate."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmo_hydra.cli import preflight
from olmo_hydra.cli.preflight_compile import COVERS, answer, verdict
from olmo_hydra.cli.say import say
from olmo_hydra.config.arguments import refuse_silent_mistakes
from olmo_hydra.config.compose import compose, conf_found
from olmo_hydra.config.errors import RunFailed
from olmo_hydra.hardware import ahead
from olmo_hydra.report.bars import write_bars
from olmo_hydra.tracking.files import make_folder


def run(name: str, overrides: list[str], as_json: bool, out: Path) -> None:
    """Compiles every cell, prints them beside the first one, and draws those that fit. All are checked before the first
    is compiled.

    Raises:
      RequestError: There is no such sweep, a cell is wrong, or nothing can be compiled for the hardware here.
      RunFailed: Some cell does not fit.
    """
    swept, cells = _cells(name, overrides)
    configs = [compose([f"sweep={name}", *cell]) for cell in cells]
    devices = [ahead.devices(config.hardware) for config in configs]
    make_folder(out, "--out")
    found = []
    for cell, config, its_devices in zip(cells, configs, devices, strict=True):
        label = _label(cell, swept)
        if not as_json:
            say(f"compiling {label}")
            sys.stdout.flush()
        found.append({"cell": label} | preflight.facts(config) | {"compiled": answer(config, its_devices)})
    plot = out / f"sweep_{name}.html"
    fitting = [each for each in found if each["compiled"]["fits"]]
    bars = _bars(fitting)
    if bars:
        write_bars(plot, f"sweep={name}: an update on one device, by the compiler's estimate", "seconds", bars, COVERS)
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
        say(f"\n{COVERS}" + (f"\n\nplot            {plot}" if bars else ""))
    if len(fitting) < len(found):
        raise RunFailed("does not fit: " + ", ".join(each["cell"] for each in found if each not in fitting))


def _cells(name: str, overrides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The keys that a sweep varies, and the overrides of each cell, as `python train.py -m sweep=NAME` has them.

    Raises:
      RequestError: An override is none.
    """
    refuse_silent_mistakes(overrides)
    parser = OverridesParser.create()
    with conf_found():
        config = hydra_compose("config", overrides=[f"sweep={name}"], return_hydra_config=True)
    params = [f"{key}={values}" for key, values in config.hydra.sweeper.params.items()]
    parsed = parser.parse_overrides([*params, *overrides])
    swept = dict.fromkeys(each.get_key_element() for each in parsed if each.is_sweep_override())
    (cells,) = BasicSweeper.split_arguments(parsed, None)
    return list(swept), cells


def _label(cell: Sequence[str], swept: Sequence[str]) -> str:
    return " ".join(each for each in cell if each.partition("=")[0] in swept)


def _bars(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds by cell and part: cycles of each part of the program, attention by roofline, and sending."""
    bars: dict[str, dict[str, float]] = {}
    for each in found:
        update, cycles = each["compiled"]["update"], each["compiled"]["cycles"]
        if update is not None:
            second = update["seconds_of_cycles"] / max(1, sum(cycles.values()))
            bars[each["cell"]] = {
                **{part: number * second for part, number in sorted(cycles.items())},
                "attention kernels, by roofline": update["seconds_of_kernels_by_roofline"],
                "sending, by bandwidth": update["seconds_sending"],
            }
    return bars


def _show(found: Sequence[dict[str, Any]]) -> None:
    """One line a cell, percentages against the first that fits; then what each of the others lacks."""
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", no_wrap=True)
    for name in ("cycles", "", "attention by roofline", "sending", "an update", "", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    first = next((each["compiled"] for each in found if each["compiled"]["fits"]), None)
    for each in found:
        one = each["compiled"]
        if first is None or not one["fits"]:
            table.add_row(Text(each["cell"]), "does not fit")
            continue
        cycles, base = sum(one["cycles"].values()), sum(first["cycles"].values())
        update, before = one["update"], first["update"]
        times = ["-"] * 4
        if update is not None and before is not None:
            names = ("seconds_of_kernels_by_roofline", "seconds_sending", "seconds_per_update")
            times = [f"{update[key]:.3f} s" for key in names]
            times.append(_change(update["seconds_per_update"], before["seconds_per_update"]))
        memory = f"{one['memory']['needed'] / 2**30:.2f} GiB"
        table.add_row(Text(each["cell"]), f"{cycles:,}", _change(cycles, base), *times, memory)
    console = Console(highlight=False)
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    Console(highlight=False, width=needed).print(table)
    for each in found:
        if not each["compiled"]["fits"]:
            say(f"{each['cell']} {verdict(each['compiled'])}")


def _change(value: float, base: float) -> str:
    return "" if value == base else f"{value / base - 1:+.1%}"
