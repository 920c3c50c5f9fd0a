"""The page of a stranger's run in a real browser: names of any length and any content, and no script but its own."""

import json

from olmo_hydra.report.build import write_report
from tests.report.synthetic import evaluation, finished_run, start
from tests.report.test_browser import browser, show  # noqa: F401  a fixture

SCRIPT = "</script></pre></td>\"'><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CANARY = f"{SCRIPT}<svg onload=\"document.title='owned'\"><a href=\"javascript:document.title='owned'\">"


def hostile_run(path):
    run_dir = finished_run(path)
    long = CANARY + "W" * 10_000
    row = evaluation(400, "heldout", 1.5)
    row["domains"] = dict.fromkeys((CANARY, long, "</style>", "$x^2$"), row["domains"]["stdlib"])
    with run_dir.evals.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.write(
            json.dumps({"step": 400, "suite": "samples", "samples": [{"prompt": long, "text": "\ud800" + long}]}) + "\n"
        )
    with run_dir.events.open("a") as file:
        event = {"time": "2026-01-05T10:00:00+00:00", "event": "wandb", "where": "javascript:document.title='owned'"}
        file.write(json.dumps(event | {CANARY: {CANARY: [long]}}) + "\n")
        file.write(json.dumps(event | {"event": long}) + "\n")
    first = start()
    first |= {
        "host": long,
        "os": CANARY,
        "folder": CANARY,
        "script": long,
        "python": CANARY,
        "environment": {long: long},
    }
    first["git"] |= {"diff": long, "commit": f"; touch owned #{long}"}
    first["data"] |= {"name": long, "fingerprint": CANARY}
    run_dir.provenance.write_text(json.dumps({"starts": [first]}))
    run_dir.overrides.write_text(json.dumps([f"x={CANARY}", long]))
    return run_dir


def test_nothing_of_it_runs_and_nothing_is_wider_than_the_window(browser, tmp_path):  # noqa: F811
    run_dir = hostile_run(tmp_path / f"<img src=x onerror=document.title=1>{'n' * 200}")
    write_report(run_dir)
    for width in (1400, 390):
        show(browser, run_dir, width)
        assert browser.title.endswith(": finished") and browser.get_log("browser") == []
        found = browser.execute_script(
            "const page = document.documentElement;"
            "return [page.scrollWidth - page.clientWidth, innerWidth, document.querySelectorAll('img, script').length,"
            " document.querySelectorAll('a[href^=javascript]').length,"
            " document.querySelectorAll('.plot-container').length]"
        )
        assert found[:4] == [0, width, 3, 0] and found[4] > 4  # the figures, plotly.js and the page's own script
