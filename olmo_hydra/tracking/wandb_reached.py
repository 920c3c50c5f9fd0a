"""How far a run ever came: W&B may be ahead of a record that was rewound after a kill, but not of this."""

from itertools import chain

from olmo_hydra.tracking.files import MAX_DOCUMENT, open_to_append, read, writing
from olmo_hydra.tracking.run_dir import Kind, RunDir

KINDS: tuple[Kind, ...] = ("metrics", "throughput", "evals", "time", "events")


def reached(run_dir: RunDir) -> int:
    """The furthest step of any start, as far as the directory knows: from its rows, and from what W&B was sent.

    A rewind leaves the rows of time and of events; but after a kill, what was done since the last of these is known
    only by what was sent.

    Raises:
      RequestError: The record is damaged.
    """
    told = (row.get("step") for kind in KINDS for row in run_dir.rows(kind))
    lines = (read(run_dir.wandb / "reached", MAX_DOCUMENT) or b"").split(b"\n")
    sent = (int(line) for line in lines if line.isdigit())  # a torn line is none
    return max(chain((step for step in told if type(step) is int), sent), default=0)


def keep_reached(run_dir: RunDir, step: int) -> None:
    """Keeps in `wandb/reached` that the steps up to this one are about to be sent.

    Not forced to disk, as it is done at every step: it outlives the process, which is enough.

    Raises:
      RequestError: It cannot be written.
    """
    path = run_dir.wandb / "reached"
    with open_to_append(path) as file, writing(path):
        file.write(b"%d\n" % step)
