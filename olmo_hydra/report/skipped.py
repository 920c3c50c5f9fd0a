"""The page on skipped updates that ended a run: the numbers around them, and batch by batch what they read.

From `skipped.json`, which `olmo_hydra.cli.skipped` writes.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from olmo_hydra.report.content import Block, Chart, Code, Facts, Link, Page, Prose, Role, Samples, Section, Table
from olmo_hydra.report.curves import curve, thin
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.html import render
from olmo_hydra.report.sections import STEP
from olmo_hydra.report.text import count, percent, short
from olmo_hydra.report.verdict import stopped
from olmo_hydra.tracking.documents import as_written, load_json
from olmo_hydra.tracking.files import replace
from olmo_hydra.tracking.run_dir import RunDir

BEFORE = 100  # updates that are charted ahead of the first skipped one, at least
MOST_UPDATES = 300  # in the table, and whose batches are shown
MOST_TEXTS = 6000
PER_LABEL = "data/tokens/"


def write_skipped(run_dir: RunDir) -> Path | None:
    """Writes `skipped.html`, as self-contained as `report.html`, from `skipped.json` and the rows.

    Returns its path; None, and writes nothing, where there is no `skipped.json`.

    Raises:
      RequestError: A file is damaged, or is not what a run writes; or the page cannot be written.
    """
    told = load_json(run_dir.skipped_batches)
    if told is None:
        return None
    with as_written(run_dir.path, "a page on its skipped updates"):
        content = render(page(Evidence(run_dir), told))
    replace(run_dir.skipped_page, content.encode(errors="replace"))
    return run_dir.skipped_page


def stop(run: Evidence) -> Section | None:
    """In a run's report: where skipped updates stopped it, and the way to their page."""
    if run.skipped_batches is None:
        return None
    first, last = (count(run.skipped_batches[key]) for key in ("first", "last"))
    since = f"Skipped updates, {first} to {last}, once stopped this run. It has been started again since."
    blocks: list[Block] = [Prose(stopped(run) or since)]
    blocks.append(Link("skipped.html", f"What was in the batches of updates {first} to {last}"))
    return Section("stopped", "Where it stopped", blocks)


def page(run: Evidence, told: Row) -> Page:
    """The content of the page, in reading order."""
    updates = told["updates"][:MOST_UPDATES]
    sections = [numbers(run, updates), in_common(run, told, updates), batches(run, updates), ways_on(run)]
    first, last, before = told["first"], told["last"], told["checkpoint"]
    return Page(
        title=f"{run.name}: skipped updates {count(first)} to {count(last)}",
        state=run.state,
        finished=run.finished,
        verdict=stopped(run) or f"Updates {count(first)} to {count(last)} stopped a start of this run.",
        key_numbers=[
            ("Skipped", count(len(told["updates"])), "updates in a row"),
            ("First", count(first), reason(told["updates"][0])),
            ("Last", count(last), reason(told["updates"][-1])),
            ("Checkpoint", "none" if before is None else count(before), "the newest from before them"),
        ],
        sections=[section for section in sections if section is not None],
    )


def reason(update: Row) -> str:
    """Why an update was skipped, without numbers."""
    return update["why"].partition(":")[0]


def numbers(run: Evidence, updates: Sequence[Row]) -> Section:
    """Loss and gradient norm up to the last skipped update, and a line for each of them."""
    first, last = updates[0]["step"], updates[-1]["step"]
    begin = first - max(BEFORE, 2 * (last - first))
    by_step = {row["step"]: row for row in (*run.metrics, *updates) if begin <= row["step"] <= last}
    rows = [by_step[step] for step in sorted(by_step)]
    charts: list[Block] = [
        _chart("loss", "Training loss", "nats per token", rows, updates),
        _chart("grad_norm", "Gradient norm", "L2 norm before clipping", rows, updates),
    ]
    cells = [
        [
            count(update["step"]),
            update["why"],
            *(_number(update[key]) for key in ("loss", "grad_norm", "lr")),
            f"{count(update['epoch'])}, {count(update['row'] + 1)}",
        ]
        for update in updates
    ]
    columns = ["update", "why it was skipped", "loss", "gradient norm", "learning rate", "epoch, batch"]
    return Section("numbers", "The numbers", [*charts, Table(columns, cells, text_columns=2)])


def in_common(run: Evidence, told: Row, updates: Sequence[Row]) -> Section:
    """Labels beside those of the whole run, instances in several batches, and what the repetition filter says."""
    shown = [held for update in updates for held in update["shown"]]
    repeating = sum(held["repeats"] for held in shown)
    caught = "has taken their targets" if told["filtered"] else "is off, and would take their targets"
    again = Counter(instance for update in updates for instance in set(update["instances"]))
    twice = [instance for instance, times in again.most_common(20) if times > 1]
    facts = [
        ("instances", f"{count(len(again))} different ones, {count(len(shown))} of which are shown below"),
        ("repeat themselves", f"{count(repeating)} of those shown; data.repetition_filter {caught}"),
        ("in several batches", ", ".join(map(str, twice)) or "none"),
        ("without any target", f"{count(sum(not update['targets'] for update in updates))} of the batches"),
    ]
    return Section("common", "What they have in common", [Facts("Instances", facts), _labels(run, updates)])


def batches(run: Evidence, updates: Sequence[Row]) -> Section:
    """What each of the batches held: the first one is open, the others fold."""
    blocks, left = [], MOST_TEXTS
    for n, update in enumerate(updates):
        texts = [pair for held in update["shown"] for pair in _texts(held)][:left]
        left -= len(texts)
        rest = len(update["instances"]) - len(update["shown"])
        step = update["step"]
        more = f"{count(rest)} more instances: " if rest > 0 else "The whole of it: "
        note = f"{more}olmo-hydra data inspect {run.name} --step {step}"
        caption = f"Update {count(step)}: {count(len(update['instances']))} instances; {update['why']}"
        blocks.append(Samples(texts, caption=caption, folded=n > 0, note=note))
    return Section("batches", "What was in the batches", [*blocks])


def ways_on(run: Evidence) -> Section | None:
    """What the run said when it stopped."""
    end = run.stopped
    if end is None:
        return None
    return Section("next", "What to do", [Code("The message of the stop", end["error"].removeprefix("RunFailed: "))])


def _chart(column: str, title: str, unit: str, rows: Sequence[Row], updates: Sequence[Row]) -> Chart:
    series = [thin(curve(title.lower(), rows, column))]
    if drawn := [update for update in updates if update[column] is not None]:
        series.append(curve("skipped update", drawn, column, Role.mark))
    lacking = len(updates) - len(drawn)
    note = f"Not finite, so not drawn, in {count(lacking)} of the skipped updates." if lacking else ""
    return Chart(column, title, STEP, unit, series, note=note, log_y=column == "grad_norm", whole=False)


def _labels(run: Evidence, updates: Sequence[Row]) -> Table:
    here: Counter[str] = Counter()
    for update in updates:
        here.update(update["tokens"])
    last: Row = next((row for row in reversed(run.metrics) if "data/epoch" in row), {})
    all_of_run = sum(value for key, value in last.items() if key.startswith(PER_LABEL))
    total = max(here.total(), 1)
    rows = [
        [label, short(tokens), percent(tokens / total), percent(last.get(PER_LABEL + label, 0) / max(all_of_run, 1))]
        for label, tokens in here.most_common(30)
    ]
    return Table(["label", "tokens in these batches", "share", "share of the whole run"], rows)


def _texts(held: Row) -> list[tuple[str, str]]:
    """Heading and text of each document of an instance."""
    flag = ", repeats itself" if held["repeats"] else ""
    more = held["n_documents"] - len(held["documents"])
    texts = []
    for document in held["documents"]:
        name = f"{document['document']}\n" if document["document"] else ""
        place = f"{document['label']}: {document['file']}, {count(document['tokens'])} tokens"
        heading = f"instance {held['instance']}{flag}\n{name}{place} from {count(document['offset'])} on"
        texts.append((heading, f"\n{document['text']}"))
    if more > 0 and texts:
        texts[-1] = (texts[-1][0], f"{texts[-1][1]}\n… and {count(more)} more documents")
    return texts


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
