"""Results as a table and as a picture."""

from html import escape
from typing import Any

from benchmarks.peers.programs import PROGRAMS
from benchmarks.peers.summary import rate

WIDTH, LEFT, ROW, TOP = 860, 250, 46, 64
TICKS = 5


def table(programs: dict[str, dict[str, Any]]) -> str:
    """Markdown: a line a program, medians with the least and the most."""
    lines = [
        "| program | tokens/s | CPU s a step | ours is faster by | by CPU s | loss is ours to | versions |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in programs.items():
        if "failed" in found:
            lines.append(f"| {PROGRAMS[name].title} | {found['failed']} | | | | | |")
            continue
        columns = [
            PROGRAMS[name].title,
            _spread(found, "tokens_per_second", "{:,.0f}"),
            _spread(found, "cpu_seconds", "{:.2f}"),
            _spread(found, "times", "{:.2f}"),
            _spread(found, "times_by_cpu", "{:.2f}"),
            f"{found['loss_difference']:.0e}" + ("" if found["same_model"] else " (another model)"),
            ", ".join(f"{library} {version}" for library, version in found["versions"].items()),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _spread(found: dict[str, Any], field: str, form: str) -> str:
    if field not in found:
        return ""
    median, least, most = (form.format(found[field][key]) for key in ("median", "min", "max"))
    return f"{median} ({least} to {most})"


def picture(programs: dict[str, dict[str, Any]], tokens_per_step: int, title: str) -> str:
    """SVG: tokens a second of every turn of every program as dots, the median as a line."""
    shown = {name: found for name, found in programs.items() if "tokens_per_second" in found}
    most = max(found["tokens_per_second"]["max"] for found in shown.values())
    step = _round_step(most / TICKS)
    end = step * (int(most / step) + 1)
    height, bottom = TOP + ROW * len(shown) + 40, TOP + ROW * len(shown)

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 30) * value / end, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="20" y="30" font-size="17">{escape(title)}</text>',
    ]
    for tick in range(int(end / step) + 1):
        at = x(tick * step)
        parts.append(f'<line x1="{at}" y1="{TOP - 14}" x2="{at}" y2="{bottom}" stroke="#ddd"/>')
        label = f"{tick * step:,.0f}"
        parts.append(f'<text x="{at}" y="{bottom + 18}" font-size="12" text-anchor="middle" fill="#555">{label}</text>')
    for row, (name, found) in enumerate(shown.items()):
        y, color = TOP + ROW * row + 14, PROGRAMS[name].color
        parts.append(f'<text x="20" y="{y + 5}" font-size="14">{escape(PROGRAMS[name].title)}</text>')
        for turn in found["turns"]:
            one = rate(turn, tokens_per_step)
            parts.append(f'<circle cx="{x(one)}" cy="{y}" r="5" fill="{color}" fill-opacity="0.5"/>')
        at = x(found["tokens_per_second"]["median"])
        parts.append(f'<line x1="{at}" y1="{y - 13}" x2="{at}" y2="{y + 13}" stroke="{color}" stroke-width="3"/>')
    parts.append(f'<text x="{WIDTH - 30}" y="{height - 6}" font-size="12" text-anchor="end">tokens a second</text>')
    return "\n".join([*parts, "</svg>\n"])


def _round_step(value: float) -> float:
    """The next of 1, 2, 5, 10, ... at or above a value."""
    size = 10.0 ** (len(str(int(value))) - 1)
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= value)
