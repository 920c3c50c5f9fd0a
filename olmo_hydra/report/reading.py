"""What a run read: how much of its epoch, whether anything twice, and of which text."""

from collections.abc import Callable, Sequence

from olmo_hydra.report.content import Block, Facts, Prose, Section, Table
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.text import count, percent, short, size
from olmo_hydra.tracking import history

MOST_ROWS = 30  # labels in a table; the rest is one row
PER_LABEL = "data/tokens/"
UNTRUE = "the data is sharded twice, or was resumed wrongly. Training loss is not to be trusted."


def what_it_read(run: Evidence) -> Section | None:
    """The ledger's totals at the last logged update, and data that was exchanged under the run."""
    exchanged = history.changes(run.starts, run.events, "fingerprint")
    blocks: list[Block] = [
        Prose(f"From update {count(event['step'] + 1)} on it read other data: {'; '.join(event['differences'])}.")
        for event in exchanged
    ]
    text = other_text(run)
    blocks += [Prose(text)] if text else []
    last = next((row for row in reversed(run.metrics) if "data/epoch" in row), None)
    if last is not None:
        facts = [
            ("epoch", count(last["data/epoch"])),
            ("seen in it", f"{percent(last['data/seen_fraction'])} of the instances"),
            ("read again in it", f"{percent(last['data/repeated_fraction'])} of what was read"),
            ("without targets", f"{count(last['data/masked_tokens'])} tokens, by the repetition filter"),
        ]
        blocks += [
            Prose(repeats(run) or no_repeats(exchanged, last["data/epoch"])),
            Facts("Ledger", facts),
            by_label(last),
        ]
    return Section("reading", "What it read", blocks) if blocks else None


def repeats(run: Evidence) -> str | None:
    """What to say of instances that an epoch read more than once; None if there are none."""
    for row in reversed(run.metrics):
        if row.get("data/repeated_fraction"):
            share, epoch = percent(row["data/repeated_fraction"]), count(row["data/epoch"])
            return f"{share} of the instances that epoch {epoch} read had been read in it before: {UNTRUE}"
    for event in run.events:
        if event["event"] == "data_repeated":
            step, repeated, epoch = (count(event[key]) for key in ("step", "repeated", "epoch"))
            return f"Update {step} read {repeated} instances that epoch {epoch} had read before: {UNTRUE}"
    return None


def no_repeats(exchanged: Sequence[Row], epochs: int) -> str:
    """What to say of `epochs` in which the ledger saw none: it cannot tell of those that were begun with other data."""
    begun = {event["begun"]: event for event in exchanged if event["begun"] is not None}
    texts = []
    for epoch, event in begun.items():
        anew = ", from where the ledger counts anew" if event["ledger_begins_anew"] else ""
        where = f"its data was exchanged before update {count(event['step'] + 1)}{anew}"
        texts.append(f"Whether epoch {count(epoch)} read anything twice cannot be said: {where}.")
    if epochs > len(begun):
        texts.append(f"No {'other ' * bool(begun)}epoch read an instance twice.")
    return " ".join(texts)


def other_text(run: Evidence) -> str | None:
    """What to say of held-out text that was exchanged under the run; None if it was not."""
    texts = history.changes(run.starts, run.events, "heldout")
    if not texts:
        return None
    last = texts[-1]
    return (
        f"From update {count(last['step'] + 1)} on other text is held out ({'; '.join(last['heldout'])}). Evaluations "
        "before that do not compare with those after it and are not shown; evals.jsonl has them."
    )


def by_label(last: Row) -> Table:
    """Tokens of the run by label, the most first."""
    tokens = {key.removeprefix(PER_LABEL): value for key, value in last.items() if key.startswith(PER_LABEL)}
    ranked = sorted(tokens.items(), key=lambda item: -item[1])
    total = max(sum(tokens.values()), 1)
    rows = _first([[label, value] for label, value in ranked])
    cells = [[label, short(value), f"{value / total:.2%}"] for label, value in [*rows, ["all", sum(tokens.values())]]]
    note = f"Tokens read up to update {count(last['step'])}, over all epochs, padding not counted."
    return Table(["label", "tokens", "share"], cells, total=True, note=note)


def text_used(run: Evidence) -> Section | None:
    """What there is of each domain on both sides (documents and text of a prepared one, else files and tokens), and
    what of it instances leave out.
    """
    if not run.starts:
        return None
    data = run.starts[-1]["data"]
    domains = data["domains"]
    kinds: dict[str, Callable[[float], str]] = {"documents": count, "bytes": size}
    if any("files" in domain["train"] for domain in domains.values()):
        kinds = {"files": count, "tokens": short}
    sides = {"train": "train", "heldout": "held-out"}
    columns = [f"{title} {'text' if kind == 'bytes' else kind}" for title in sides.values() for kind in kinds]
    numbers = [
        [name, *(domain[side][kind] for side in sides for kind in kinds)]
        for name, domain in sorted(domains.items(), key=lambda item: -item[1]["train"]["tokens"])
    ]
    shows = [*kinds.values()] * 2
    rows = _first(numbers)
    rows.append(["all", *(sum(column) for column in list(zip(*numbers, strict=True))[1:])] if numbers else ["all"])
    cells = [[row[0], *(show(number) for show, number in zip(shows, row[1:], strict=False))] for row in rows]
    prepared = "documents were split into train and held-out before anything else; none is in both"
    apart = prepared if "documents" in kinds else "no file is both trained on and held out"
    room = data["instances"] * run.config["data"]["seq_len"]
    cut = [
        ("instances", f"{count(data['instances'])} of {count(run.config['data']['seq_len'])} tokens"),
        ("padding", f"{count(data['padding_tokens'])} tokens, {percent(data['padding_tokens'] / room)} of them"),
        ("dropped", f"{count(data['dropped_tokens'])} tokens of the training files are in no instance"),
    ]
    hashes = f"Fingerprint of the data: {data['fingerprint'][:16]}"
    hashes += f"; of the held-out text: {data['heldout'][:16]}." if data["heldout"] else "."
    note = f"{data['name']}: {apart}. {hashes}"
    table = Table(["domain", *columns], cells, total=True, note=note)
    return Section("text", "On what text", [table, Facts("Instances", cut)])


def _first(rows: list[list]) -> list[list]:
    """The first rows, and the sums of the others as one: a name and numbers each."""
    shown, others = rows[:MOST_ROWS], rows[MOST_ROWS:]
    if not others:
        return shown
    sums = [sum(column) for column in list(zip(*others, strict=True))[1:]]
    return [*shown, [f"{count(len(others))} others", *sums]]
