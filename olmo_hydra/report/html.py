"""A page as one HTML file: template, style, script, plotly.js and data, all inside it."""

import base64
import hashlib
import html
import json
import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from olmo_hydra.report.content import Chart, Number, Page, Role, Series

# Looks by role. Colours are names of the style sheet's variables, so that they follow light and dark.
LOOKS: dict[Role, dict[str, Any]] = {
    Role.main: {"mode": "lines", "line": {"width": 2}},
    Role.part: {"mode": "lines", "line": {"width": 1.5}},
    Role.raw: {"mode": "lines", "line": {"width": 1}, "opacity": 0.35},
    Role.baseline: {"mode": "lines", "line": {"width": 1.5, "color": "var(--muted)"}},
    Role.mark: {"mode": "markers", "marker": {"size": 8, "symbol": "x", "color": "var(--alarm)"}},
}
DASHES = ("dash", "dot", "dashdot")
MAX_TEXT = 250_000  # characters: provenance keeps a diff of 200,000
MAX_NAME = 60  # characters of a curve's name: a legend is a line each
PARTS = 6  # colours of the style sheet for parts: --part-0 to --part-5


def render(page: Page) -> str:
    """The page as HTML. Text is escaped here, and nowhere else; none is longer than `MAX_TEXT` characters.

    The page names the two scripts that may run, by their hashes: no other does, should a text ever get past escaping.
    """
    environment = Environment(
        loader=PackageLoader("olmo_hydra.report", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_cut,
    )  # fmt: skip
    figures = json.dumps({chart.id: figure(chart) for chart in page.charts()}, allow_nan=False)
    scripts = [get_plotlyjs().replace("</script", "<\\/script"), environment.get_template("page.js").render()]
    return environment.get_template("page.html").render(
        page=page,
        figures=Markup(figures.replace("<", "\\u003c")),  # or `</script>` in a name would end the data
        scripts=[Markup(script) for script in scripts],
        hashes=Markup(" ".join(map(_hash, scripts))),
    )


def _cut(value: Any) -> Any:
    """A text that a page can show."""
    if isinstance(value, Markup) or not isinstance(value, str) or len(value) <= MAX_TEXT:
        return value
    return f"{value[:MAX_TEXT]}… and {len(value) - MAX_TEXT:,} more characters"


def _hash(script: str) -> str:
    """A script as the policy of a page names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def figure(chart: Chart) -> dict[str, Any]:
    """A chart as plotly.js takes it."""
    parts = levels = 0
    traces = []
    for series in chart.series:
        trace = _trace(series)
        if series.role is Role.part:
            trace["line"]["color"] = f"var(--part-{parts % PARTS})"
            parts += 1
        if series.role is Role.baseline:
            trace["line"]["dash"] = DASHES[levels % len(DASHES)]
            levels += 1
        if series.role in (Role.main, Role.part) and len(series.x) <= 30:
            trace["mode"] = "lines+markers"
        traces.append(trace)
    axis = {
        "gridcolor": "var(--line)",
        "zeroline": False,
        "linecolor": "var(--line)",
        "automargin": True,
        "exponentformat": "e",
        "minexponent": 5,
    }
    y_axis = axis | {"title": {"text": chart.y_title}, "rangemode": "tozero" if chart.from_zero else "normal"}
    if chart.log_y:
        y_axis |= {"type": "log", "dtick": 1}
    layout = {
        "height": 360,
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "var(--ink)"},
        "xaxis": axis | {"title": {"text": chart.x_title}, "rangemode": "tozero" if chart.whole else "normal"},
        "yaxis": y_axis,
        "showlegend": len(traces) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
    }
    return {"data": traces, "layout": layout}


def _trace(series: Series) -> dict[str, Any]:
    looks = LOOKS[series.role]
    x, y = (list(map(_drawn, axis)) for axis in (series.x, series.y))
    name = html.escape(series.name[:MAX_NAME], quote=False)  # plotly.js takes tags in a name for its own
    trace = {"type": "scatter", "name": name, "x": x, "y": y, "cliponaxis": False, **looks}
    if "line" in looks:
        trace["line"] = {"color": "var(--accent)", **looks["line"]}
    return trace


def _drawn(value: Number) -> Number:
    """A number that JSON has: a mean of numbers near the largest is none."""
    return value if value is None or math.isfinite(value) else None
