"""A chart of bars: its numbers are in the file, names are text, and nothing is fetched."""

import json
import re
from pathlib import Path

from olmo_hydra.report.bars import write_bars


def test_stacked_bars_in_one_file(tmp_path: Path) -> None:
    bars = {"head_dim=128": {"blocks": 0.5, "sending": 0.25}, "head_dim=<b>256": {"blocks": 0.375}}
    write_bars(tmp_path / "bars.html", "an update & its <parts>", "seconds", bars, "no <measurement>")
    page = (tmp_path / "bars.html").read_text()
    (data,) = re.findall(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*(\[.*?\]),\s*\{\"", page, re.DOTALL)
    traces = json.loads(data)
    assert [(trace["name"], trace["y"]) for trace in traces] == [("blocks", [0.5, 0.375]), ("sending", [0.25, None])]
    assert traces[0]["x"] == ["head_dim=128", "head_dim=&lt;b&gt;256"]
    assert "an update &amp; its &lt;parts&gt;" in page and "<p>no &lt;measurement&gt;</p>" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
