"""The page of one run: `write_report`."""

from pathlib import Path

from olmo_hydra.report import goodput, origin, profile, reading, sections, skipped
from olmo_hydra.report.content import Page, Section
from olmo_hydra.report.evidence import Evidence
from olmo_hydra.report.html import render
from olmo_hydra.report.text import count, short
from olmo_hydra.report.verdict import key_numbers, verdict
from olmo_hydra.tracking.documents import as_written
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.run_dir import RunDir


def write_report(run_dir: RunDir) -> Path:
    """Writes `report.html`, one page that needs no network, from what the run directory holds now.

    Also `skipped.html` (`write_skipped`), if there is something to put into it.
    Works on an unfinished run, on one with parts missing, and after a kill. Returns the page's path.

    Raises:
      RequestError: The folder is not a run directory, one of its files is damaged or is not what a run writes; or the
        page cannot be written.
    """
    skipped.write_skipped(run_dir)
    with as_written(run_dir.path, "a report"):
        content = render(page(Evidence(run_dir)))
    replace(run_dir.report, content.encode(errors="replace"))  # JSON has characters that UTF-8 has not
    return run_dir.report


def page(run: Evidence) -> Page:
    """The content of a run's report, in reading order."""
    if run.is_weights:
        return weights_page(run)
    parts = [
        skipped.stop(run),
        sections.learning(run),
        sections.samples(run),
        sections.what_ran(run),
        reading.what_it_read(run),
        reading.text_used(run),
        sections.dynamics(run),
        sections.speed(run),
        goodput.where_time_went(run),
        profile.traced(run),
        sections.timeline(run),
        origin.again(run),
        origin.provenance(run, sections.config_file(run)),
    ]
    return Page(
        title=run.name,
        state=run.state,
        finished=run.finished,
        verdict=verdict(run),
        key_numbers=key_numbers(run),
        sections=[part for part in parts if part is not None],
    )


def weights_page(run: Evidence) -> Page:
    """The content for a directory that holds weights from elsewhere and has never trained."""
    parameters = run.events[0]["parameters"]
    parts = [
        Section("config", "What it holds", [sections.the_model(run)]),
        sections.timeline(run),
        origin.provenance(run, sections.config_file(run)),
    ]
    return Page(
        title=run.name,
        state=run.state,
        finished=False,
        verdict=f"These are weights from {run.config['weights']['from']}. Nothing was trained or evaluated here.",
        key_numbers=[("Parameters", short(parameters), count(parameters))],
        sections=[part for part in parts if part is not None],
    )
