"""Where the numbers come from, and the commands that make them again."""

import shlex

from olmo_hydra.report.content import Block, Code, Facts, Prose, Section
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.text import moment

MOST_STARTS = 20  # whose times are listed
# What of a start may differ from the first without being seen in a row.
COMPARED = ("git", "packages", "python", "host", "devices", "environment", "operations", "data")


def again(run: Evidence) -> Section:
    """The command that continues an unfinished run, or repeats a finished one; it works from any folder."""
    left_out = ("run.stop_at=", "run.tag=") if run.finished else ("run.stop_at=",)  # or it would pause there once more
    words = [text for text in run.overrides if not text.lstrip("+").startswith(left_out)]
    if run.finished:
        words.append("run.tag=again")
        lead = (
            "The run is finished: its own command says so and does nothing. With a tag, the same config makes another "
            "run, whose rows are the same bytes on the same machine."
        )
    else:
        lead = "This continues the run from its last checkpoint."
    lines = []
    script = "train.py"
    if run.starts:
        first = run.starts[0]
        script = first["script"]
        lines.append(f"cd {_quote(first['folder'])}")
        if (git := first["git"]) is not None:
            remark = "  # and the changes below" if git["dirty"] else ""
            lines.append(f"git -C {_quote(git['top'])} checkout {_quote(git['commit'])}{remark}")
    lines.append(" ".join(["python", *map(_quote, (script, *words))]))
    title = "To repeat it" if run.finished else "To continue it"
    return Section("again", title, [Prose(lead), Code("Command", "\n".join(lines))])


def provenance(run: Evidence, config: Code) -> Section:
    """First parameters; code, packages, machine and data of the last start; what changed; the whole config."""
    blocks: list[Block] = []
    if (init := next((row["init"] for row in run.events if "init" in row), None)) is not None:
        differs = [("there and here", sentence) for sentence in init["differs"]]
        blocks.append(Facts("First parameters", [("from", init["from"]), ("taken over", init["load"]), *differs]))
    if run.starts:
        start = run.starts[-1]
        blocks += [Facts("Code", _code(start)), Facts("Machine", _machine(start))]
        packages = [("Python", start["python"]), *start["packages"].items()]
        blocks.append(Facts("Packages", packages))
        data = start["data"]
        hashes = [("fingerprint", data["fingerprint"]), ("of the held-out text", data["heldout"] or "none is held out")]
        blocks.append(Facts("Data", [("name", data["name"]), *hashes]))
        if len(run.starts) > 1:
            times = ", ".join(moment(one["time"]) for one in run.starts[:MOST_STARTS])
            times += ", …" if len(run.starts) > MOST_STARTS else ""
            changed = sorted({key for one in run.starts[1:] for key in COMPARED if one[key] != run.starts[0][key]})
            remark = (
                f"not the same in all of them: {', '.join(changed)}" if changed else "all on the same code and machine"
            )
            blocks.append(Prose(f"{len(run.starts)} starts ({times}), {remark}."))
        if start["git"] is not None and start["git"]["diff"]:
            blocks.append(Code("Changes to the code since the commit", start["git"]["diff"], folded=True))
    return Section("provenance", "Where it comes from", [*blocks, config])


def _quote(word: str) -> str:
    """A word for the shell, in double quotes where it holds single ones, as overrides often do."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)


def _code(start: Row) -> list[tuple[str, str]]:
    git = start["git"]
    if git is None:
        return [("olmo_hydra", start["olmo_hydra"]), ("git", "not a checkout")]
    state = f"changed, diff sha256 {git['diff_sha256'][:16]}" if git["dirty"] else "no changes"
    return [("olmo_hydra", start["olmo_hydra"]), ("commit", git["commit"]), ("working tree", state)]


def _machine(start: Row) -> list[tuple[str, str]]:
    devices = ", ".join(f"{key} {value}" for key, value in start["devices"].items())
    facts = [("host", start["host"]), ("system", start["os"]), ("CPUs", str(start["cpus"])), ("devices", devices)]
    return facts + list(start["environment"].items())
