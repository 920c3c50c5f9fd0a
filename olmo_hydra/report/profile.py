"""What was traced by `train.profile`: where the trace is, what opens it, and what took the devices' time."""

from olmo_hydra.report.content import Block, Code, Link, Prose, Section, Table
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.text import count, percent

SHOWN = 5  # traces
UNKNOWN = "No operation of a device was recognised in this trace, so that there is no table: what opens it shows them."


def traced(run: Evidence) -> Section | None:
    """The newest traces, each with the operations that took most of the devices' time."""
    events = [event for event in run.events if event["event"] in ("profiled", "profile_failed")][-SHOWN:]
    if not events:
        return None
    blocks: list[Block] = []
    for event in events:
        updates = f"{count(event['first'])} to {count(event['last'])}"
        if event["event"] == "profile_failed":
            blocks.append(Prose(f"There is no trace of updates {updates}: {event['error']}"))
            continue
        blocks.append(Link(event["trace"], f"Trace of updates {updates}: https://ui.perfetto.dev opens it"))
        blocks.append(_operations(event) if event["operations"] else Prose(UNKNOWN))
    opened = "pip install xprof\nxprof --logdir profile   # in the run directory"
    blocks.append(Code("XProf shows the same traces with memory and roofline", opened))
    return Section("profile", "What was traced", blocks)


def _operations(event: Row) -> Table:
    total = sum(row["seconds"] for row in event["operations"]) or 1.0
    rows = [
        [
            row["name"],
            row["program"],
            f"{1000 * row['seconds']:.1f}",
            percent(row["seconds"] / total),
            count(row["times"]),
        ]
        for row in event["operations"]
    ]
    note = "Time of the devices, without that of operations inside; on CPUs, threads that compute at once count each."
    return Table(["operation", "of program", "milliseconds", "share", "times"], rows, text_columns=2, note=note)
