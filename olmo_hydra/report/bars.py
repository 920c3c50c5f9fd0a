"""One chart of stacked bars as an HTML file that needs nothing else."""

import html
from pathlib import Path

import plotly.io

from olmo_hydra.tracking.files import replace


def write_bars(path: Path, title: str, unit: str, bars: dict[str, dict[str, float]], note: str) -> None:
    """Writes the chart.

    Args:
      path: Of the file.
      title: Of the chart.
      unit: Of the values.
      bars: Values by bar and part; a part that a bar lacks is left out there.
      note: What the values are, below the chart.
    """
    parts = dict.fromkeys(part for values in bars.values() for part in values)
    names = [html.escape(name) for name in bars]
    traces = [
        {"type": "bar", "name": html.escape(part), "x": names, "y": [values.get(part) for values in bars.values()]}
        for part in parts
    ]
    layout = {
        "barmode": "stack",
        "title": {"text": html.escape(title)},
        "yaxis": {"title": {"text": html.escape(unit)}, "rangemode": "tozero"},
        "height": 560,
        "margin": {"b": 120},
    }
    chart = plotly.io.to_html({"data": traces, "layout": layout}, validate=False, full_html=False)
    page = f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>{chart}<p>{html.escape(note)}</p>\n"
    replace(path, page.encode())
