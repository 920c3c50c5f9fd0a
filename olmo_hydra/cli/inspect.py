"""`olmo-hydra data inspect`: what an update of a run read, what read a document, and what a config prepared."""

import argparse
import json
import shutil
import sys
from typing import Any

from olmo_hydra.cli import prepare, run_data
from olmo_hydra.cli.say import say
from olmo_hydra.config.errors import RequestError, printable, require
from olmo_hydra.data.audit import trace

QUESTIONS = ({"step"}, {"step", "instance"}, {"instance"}, {"find"}, {"find", "file"}, {"document"}, {"file", "offset"})
SHOWN = 16  # instances, or places, in text; JSON has all


def run(parsed: argparse.Namespace) -> None:
    """Looks at what a run reads, or at the prepared text of a config."""
    names = ("step", "instance", "find", "document", "file", "offset")
    asked = {name for name in names if getattr(parsed, name) is not None}
    if len(parsed.overrides) != 1 or "=" in parsed.overrides[0]:
        if asked:
            problem = "is about one run" if len(parsed.overrides) > 1 else "is about a run"
            raise RequestError(problem, key=f"--{min(asked)}", instead="olmo-hydra data inspect RUN --step N")
        prepare.of_config(parsed.overrides, parsed.json, check=True)
        return
    if asked not in QUESTIONS:
        raise RequestError(
            f"no question that can be answered: {', '.join(f'--{name}' for name in names if name in asked) or 'none'}",
            key=parsed.overrides[0],
            instead="--step N [--instance I], --instance I, --find TEXT [--file FILE], --document NAME, or "
            "--file FILE --offset TOKEN",
        )
    require(parsed.documents >= 1, "must be at least 1", key="--documents", value=parsed.documents)
    opened = run_data.open_run(parsed.overrides[0], parsed.root, lambda line: print(printable(line), file=sys.stderr))
    if parsed.step is not None:
        found, show = run_data.batch_of(opened, parsed.step, parsed.instance, parsed.documents), _show_batch
    else:
        found, show = _reads(opened, parsed), _show_reads
    if parsed.json:
        print(json.dumps(found))
    else:
        show(found)


def _reads(opened: run_data.Run, parsed: argparse.Namespace) -> dict[str, Any]:
    if parsed.find is not None:
        require(parsed.find != "", "is no text", key="--find", value=parsed.find)
        places, is_all = run_data.places_with(opened, parsed.find, parsed.file)
        return run_data.reads_of(opened, places) | {"of": f"text {parsed.find!r}", "is_all": is_all}
    if parsed.document is not None:
        places = trace.named(opened.data.files, parsed.document)
        return run_data.reads_of(opened, places) | {"of": f"document {parsed.document}", "is_all": True}
    if parsed.file is not None:
        places = run_data.places_at(opened, parsed.file, parsed.offset)
        return run_data.reads_of(opened, places) | {"of": f"token {parsed.offset:,} of {parsed.file}", "is_all": True}
    return run_data.reads_of_instance(opened, parsed.instance) | {"of": f"instance {parsed.instance}", "is_all": True}


def _show_batch(found: dict[str, Any]) -> None:
    say(
        f"{found['run']}\nupdate {found['step']:,} ({found['state']}): batch {found['batch']:,} of "
        f"{found['batches_per_epoch']:,} in epoch {found['epoch']}, {found['global_batch']:,} instances"
    )
    width = shutil.get_terminal_size().columns - 4
    for held in found["instances"][:SHOWN]:
        n = held["n_documents"]
        caught = "; no loss: the repetition filter caught it" if held["masked"] else ""
        say(f"\ninstance {held['instance']}, {n} {'document' if n == 1 else 'documents'}{caught}")
        for document in held["documents"]:
            say(f"  {_place(document)}")
            for start in range(0, len(document["text"]), width):
                say(f"    {document['text'][start : start + width]}")
        if held["n_documents"] > len(held["documents"]):
            say(f"  and {held['n_documents'] - len(held['documents'])} more; --documents {held['n_documents']}")
    if len(found["instances"]) > SHOWN:
        say(f"\nand {len(found['instances']) - SHOWN:,} more instances: --instance I shows one, --json all")


def _show_reads(found: dict[str, Any]) -> None:
    places = found["places"]
    saved = f", the state after {found['saved']:,} saved" if found["saved"] else ""
    say(f"{found['run']}\n{found['done']:,} of {found['steps']:,} updates done{saved}")
    if found["other_data"] is not None:
        _show_other_data(**found["other_data"])
    if not places:
        say(f"{found['of']}: not in the training files")
        return
    more = "" if found["is_all"] else " at least"
    say(f"{found['of']}:{more} {len(places):,} place{'s' if len(places) > 1 else ''} in the training files")
    for place in places[:SHOWN]:
        say(f"\n  {_place(place)}")
        for held in sorted(place["instances"], key=_first_update)[:SHOWN]:
            say(f"    instance {held['instance']}: {'; '.join(_epoch(epoch) for epoch in held['epochs'])}")
        if len(place["instances"]) > SHOWN:
            say(f"    and {len(place['instances']) - SHOWN:,} more instances, read later or never: --json shows all")
        if not place["instances"]:
            say("    in no instance: what is left of a file, or of a document, is dropped")
    if len(places) > SHOWN:
        say(f"\nand {len(places) - SHOWN:,} more places: --json shows all")


def _show_other_data(updates: list[list[int | None]], because: list[str]) -> None:
    spans = " and ".join(f"{first:,} on" if last is None else f"{first:,} to {last:,}" for first, last in updates)
    say(f"updates {spans} are of other data than is here, which says nothing of what they read:")
    for line in because:
        say(f"  {line}")


def _first_update(held: dict[str, Any]) -> int:
    return min((update["step"] for epoch in held["epochs"] for update in epoch["updates"]), default=sys.maxsize)


def _place(where: dict[str, Any]) -> str:
    name = f"{printable(where['document'])} ({where['label']})\n  " if where["document"] else f"{where['label']}: "
    tokens = "1 token" if where["tokens"] == 1 else f"{where['tokens']:,} tokens"
    return f"{name}{where['file']}, {tokens} from {where['offset']:,} on"


def _epoch(epoch: dict[str, Any]) -> str:
    updates = ", ".join(f"update {update['step']:,} ({update['state']})" for update in epoch["updates"])
    return f"epoch {epoch['epoch']}, {updates or 'in no batch'}"
