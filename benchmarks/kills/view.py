"""What a run is doing, as far as its files tell."""

import json
import re
from pathlib import Path

BESIDE = re.compile(r"\..+\.[0-9]+")  # a file that will replace another one


class View:
    """The files below one `run.root`, read while another process writes them."""

    def __init__(self, root: Path, tag: str):
        self.root, self._tag = root, tag

    @property
    def run(self) -> Path | None:
        """The run directory, once it is there."""
        return next(iter(self.root.glob(f"*-{self._tag}-*")), None)

    def names(self, folder: str = ".") -> set[str]:
        """Names in a folder of the run directory."""
        try:
            return {path.name for path in (self.run or self.root / "nowhere").joinpath(folder).iterdir()}
        except FileNotFoundError:
            return set()

    def steps(self) -> set[int]:
        """Steps of the checkpoints."""
        return {int(name) for name in self.names("checkpoints") if name.isdigit()}

    def saving(self) -> set[str]:
        """Folders of checkpoints that are being written."""
        return {name for name in self.names("checkpoints") if "orbax-checkpoint-tmp" in name}

    def sealed(self) -> set[str]:
        """Those of them that have their manifest."""
        return {
            name for name in self.saving() if any("manifest.json" in file for file in self.names(f"checkpoints/{name}"))
        }

    def removing(self) -> set[str]:
        """Folders of checkpoints that are being removed."""
        return {name for name in self.names("checkpoints") if name.startswith(".removed-")}

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Changes whenever a file of the run directory is written or replaced; zeros where there is none."""
        try:
            found = (self.run or self.root / "nowhere").joinpath(name).stat()
        except FileNotFoundError:
            return 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size

    def lines(self, kind: str) -> list[bytes]:
        """The lines of a jsonl file, without a torn one at its end."""
        try:
            content = (self.run or self.root / "nowhere").joinpath(f"{kind}.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        return content.split(b"\n")[:-1]

    def step(self) -> int:
        """Step of the last row of metrics."""
        lines = self.lines("metrics")
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def events(self) -> list[str]:
        """Kinds of the events."""
        return [json.loads(line)["event"] for line in self.lines("events")]

    def cached(self, pattern: str) -> int:
        """How many files of the cache match."""
        return sum(1 for _ in (self.root / "cache").glob(pattern))

    def doing(self, every: int) -> str:
        """What a process that has just been killed had been doing; `every`: updates between evaluations."""
        if self.cached("data/*.partial") or self.cached("o*/*.partial") or self.cached("packing/*.partial"):
            return "preparing data"
        events = self.events()
        if "finished" in events:
            return "ending: W&B, report"
        if any(BESIDE.fullmatch(name) for name in self.names()):
            return "replacing a file"
        since = events[max((n for n, kind in enumerate(events) if kind in ("started", "resumed")), default=0) :]
        if self.saving():
            return "saving"
        if self.removing():
            return "removing a checkpoint"
        if "compiled" not in since:
            return "starting"
        step = self.step()
        evaluated = [json.loads(line)["step"] for line in self.lines("evals")]
        return "evaluating" if step % every == 0 and step not in evaluated else "updating"
