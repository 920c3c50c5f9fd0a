"""Where the time of all starts went, and what each start took before its first update."""

from olmo_hydra.report.content import Block, Prose, Section, Shares, Table
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.text import count, moment, span
from olmo_hydra.tracking.goodput import Account, Use

# In the order in which they are shown: what advanced the run, what had to be, what a restart cost.
NAMES: dict[Use, str] = {
    "updates": "updates that count",
    "data": "waiting for data",
    "eval": "evaluation",
    "save": "held up by saving",
    "compile": "compiling the update",
    "startup": "startup",
    "ending": "ending",
    "redone": "redone after a restart",
    "restarts": "restarting",
}
PHASES = {
    "import": "imports",
    "open": "data and devices",
    "restore": "state",
    "compile": "compiling",
    "eval": "evaluation",
    "data": "first batch",
    "updates": "update",
}
SHOWN_STARTS = 10


def where_time_went(run: Evidence) -> Section | None:
    """The account of the run's time, as shares of wall time and in chip-hours; then the starts."""
    account = run.account
    if account is None:
        return None
    blocks: list[Block] = [Prose(_lead(account)), _bar(account), _table(account)]
    firsts = [event for event in run.events if event["event"] == "first_update"]
    return Section("time", "Where the time went", [*blocks, *([_starts(firsts)] if firsts else [])])


def _lead(account: Account) -> str:
    hours = sum(map(account.chip_hours, NAMES))
    text = (
        f"Goodput {_percent(account.goodput)}: of {span(account.total / 1000)} of wall time in {count(account.starts)} "
        f"start{'s' * (account.starts > 1)} ({hours:.3g} chip-hours), {span(account.milliseconds['updates'] / 1000)} "
        f"({account.chip_hours('updates'):.3g} chip-hours) went into updates that still count."
    )
    if account.starts > 1:
        text += f" Restarts cost {_percent(account.share('redone') + account.share('restarts'))}."
    if account.down:
        text += f" Between the starts nothing ran for {span(account.down / 1000)}, which is no part of that."
    return text


def _bar(account: Account) -> Shares:
    return Shares([(name, account.share(use)) for use, name in NAMES.items() if account.milliseconds[use]])


def _table(account: Account) -> Table:
    rows = [
        [name, span(account.milliseconds[use] / 1000), _percent(account.share(use)), f"{account.chip_hours(use):.3g}"]
        for use, name in NAMES.items()
    ]
    hours = sum(map(account.chip_hours, NAMES))
    rows.append(["all", span(account.total / 1000), _percent(1), f"{hours:.3g}"])
    note = (
        "Startup and ending are the process before its loop (imports, data, the first state) and after it (W&B, the "
        "report). Restarting is all that the later starts spent before their first update; redone is what they then "
        "did a second time. Chip-hours are hours times chips."
    )
    return Table(["", "time", "share", "chip-hours"], rows, total=True, note=note)


def _starts(firsts: list[Row]) -> Table:
    """Seconds from the start of a process to the end of its first update."""
    rows = [
        [
            moment(event["time"]),
            count(event["step"]),
            _seconds(event, "seconds"),
            *(_seconds(event, key) for key in PHASES),
        ]
        for event in firsts[-SHOWN_STARTS:]
    ]
    shown = f"The last {SHOWN_STARTS} of {count(len(firsts))} starts. " if len(firsts) > SHOWN_STARTS else ""
    note = f"{shown}Seconds from the start of the process to the end of the first update it made, and what they were."
    return Table(["first update (UTC)", "update", "seconds", *PHASES.values()], rows, note=note)


def _percent(share: float) -> str:
    """With one decimal, so that a column of them lines up."""
    return f"{100 * share:.1f}%"


def _seconds(event: Row, key: str) -> str:
    """Seconds of an event; empty where nothing was spent on that."""
    return f"{event[key]:.1f}" if key in event else ""
