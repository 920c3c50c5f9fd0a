"""The page in a real browser: it draws, fits, stays offline and runs nothing that the model wrote."""

import json
import shutil
from importlib.util import find_spec

import pytest

from olmo_hydra.report.build import page, write_report
from olmo_hydra.report.evidence import Evidence
from tests.components import require_component
from tests.report.synthetic import HOSTILE, finished_run
from tests.report.test_skipped import stopped_run

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    run_dir = finished_run(tmp_path_factory.mktemp("runs") / "nano-0123abcd", mfu=0.4)
    write_report(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that skipped updates have stopped."""
    run_dir = stopped_run(tmp_path_factory.mktemp("runs") / "nano-89abcdef")
    write_report(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = shutil.which("chromedriver")
    how = "apt-get install -y chromium chromium-driver, or a Chrome with its chromedriver on PATH"
    require_component("Chromium with chromedriver", driver is not None, how)
    require_component("selenium", find_spec("selenium") is not None, 'pip install -e ".[test]"')
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def show(browser, run_dir, width, scheme="light", page="report"):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((run_dir.path / f"{page}.html").as_uri())


def test_all_charts_are_drawn_with_all_points_and_no_complaint(browser, run_dir):
    show(browser, run_dir, 1400)
    assert browser.get_log("browser") == []
    drawn = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-chart]')].map(chart => [chart.dataset.chart,"
        " {points: chart.data.map(trace => trace.x.length), curves: chart.querySelectorAll('.trace').length}]))"
    )
    charts = page(Evidence(run_dir)).charts()
    assert {id: chart["points"] for id, chart in drawn.items()} == {
        chart.id: [len(series.x) for series in chart.series] for chart in charts
    }
    for chart in charts:  # each curve is on the canvas, and once more in the legend where there is one
        assert drawn[chart.id]["curves"] >= len(chart.series), chart.id


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_window(browser, run_dir, width):
    show(browser, run_dir, width)
    scrolled, visible, window = browser.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth, innerWidth]"
    )
    assert scrolled == visible and window == width  # a phone zooms out when the page is too wide


def test_the_bar_of_shares_is_in_proportion(browser, run_dir):
    show(browser, run_dir, 1400)
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.shares .bar i')].map(part => part.getBoundingClientRect().width)"
    )
    account = Evidence(run_dir).account
    shares = [value / account.total for value in account.milliseconds.values() if value]
    assert sorted(width / sum(widths) for width in widths) == pytest.approx(sorted(shares), abs=0.01)


def test_the_page_asks_the_network_for_nothing(browser, run_dir):
    browser.get_log("performance")
    show(browser, run_dir, 1400)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert [url for url in asked if url.startswith("file")] == [run_dir.report.as_uri()]


def test_what_the_model_wrote_is_shown_and_not_run(browser, run_dir):
    show(browser, run_dir, 1400)
    shown = browser.execute_script("return [...document.querySelectorAll('.samples pre')].map(pre => pre.textContent)")
    assert shown[1] == "class " + HOSTILE
    assert browser.title == "nano-0123abcd: finished"


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_on_skipped_updates(browser, stopped, width):
    """It is found from the report, fits, complains of nothing, and shows the text of a batch without running it."""
    show(browser, stopped, width)
    link = browser.find_element("link text", "What was in the batches of updates 40 to 42")
    link.send_keys("\n")  # chromedriver misses what it clicks on a phone that was scrolled
    assert browser.current_url == stopped.skipped_page.as_uri() and browser.get_log("browser") == []
    assert browser.title == "nano-89abcdef: skipped updates 40 to 42: failed"
    scrolled, visible = browser.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert scrolled == visible
    shown = browser.execute_script(
        "return [...document.querySelectorAll('details[open] pre')].map(pre => pre.innerText)"
    )
    assert len(shown) == 2 and "<script>document.title = 'broken'</script>" in shown[0]


def test_charts_follow_light_and_dark(browser, run_dir):
    colours = {}
    for scheme in ("light", "dark"):
        show(browser, run_dir, 1400, scheme)
        colours[scheme] = browser.execute_script(
            "const chart = document.querySelector('[data-chart=loss]');"
            "return [getComputedStyle(document.body).color, chart.layout.font.color, chart.data[1].line.color]"
        )
    assert all(light != dark for light, dark in zip(colours["light"], colours["dark"], strict=True))
    assert all(colour.startswith("#") for colour in colours["dark"][1:])
