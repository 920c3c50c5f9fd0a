"""How far a run is, for the person who waits: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from olmo_hydra.config.errors import printable


class Progress:
    """Shows step, loss, held-out bits per byte, learning rate, tokens per second and the time left, on stderr.

    Off a terminal a line is printed for the first and the last step and for every evaluation; between them every 5 s,
    and ever less often in a long run, down to once a minute. Where output fails, it falls silent: it never ends a run.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self._console = console if console is not None else Console(stderr=True)
        self._console.file = cast(IO[str], _Stream(self._console.file))
        self._clock = clock
        self._shown: dict[str, str] = {}
        self._bar: Bar | None = None
        self._total = self._done = 0
        self._began: tuple[int, float] | None = None
        self._printed_step: int | None = None

    def start(self, total: int, done: int) -> None:
        """Begins at step `done` of `total` (`done` is 0, or the restored checkpoint's step)."""
        self._total, self._done = total, done
        self._began = self._printed_step = None
        if self._console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.completed}/{task.total}"),
                BarColumn(bar_width=None, style="dim", complete_style="cyan", finished_style="green"),
                TextColumn("{task.fields[numbers]}"),
                console=self._console,
                expand=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done, numbers="[dim]starting[/]")
            self._bar.start()

    def step(
        self, n: int, loss: float | None = None, tokens_per_second: float | None = None, lr: float | None = None
    ) -> None:
        """Update `n` is done. Numbers that are not given stay as last shown."""
        self._done = n
        if self._began is None:  # the first update compiles, so the time left is reckoned from its end
            self._began = (n, self._clock())
        if loss is not None:
            self._shown["loss"] = f"{loss:.3f}"
        if lr is not None:
            self._shown["lr"] = f"{lr:.1e}"
        if tokens_per_second is not None:
            self._shown["tok/s"] = _short(tokens_per_second)
        if self._bar is None:
            if self._due():
                self._print_line()
        else:
            numbers = "  ".join(f"[dim]{label}[/] {value}" for label, value in self._ordered())
            self._bar.update(self._task, completed=n, numbers=numbers)

    def evaluated(self, bits_per_byte: float) -> None:
        """Held-out bits per byte of the current step."""
        self._shown["bpb"] = f"{bits_per_byte:.3f}"
        if self._bar is None:
            self._print_line()

    def note(self, text: str) -> None:
        """Prints a line above the bar."""
        shown = "\n".join(map(printable, text.split("\n")))
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the bar as it stands and gives the terminal back; elsewhere prints the last step's line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._began is not None and self._printed_step != self._done:
            self._print_line()

    def _ordered(self) -> list[tuple[str, str]]:
        present = [(label, self._shown[label]) for label in ("loss", "bpb", "lr", "tok/s") if label in self._shown]
        return present + [("eta", self._time_left())]

    def _time_left(self) -> str:
        if self._began is None or self._done == self._began[0]:
            return "--:--"
        first, at = self._began
        seconds = round((self._clock() - at) / (self._done - first) * (self._total - self._done))
        hours, rest = divmod(seconds, 3600)
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"

    def _due(self) -> bool:
        if self._printed_step is None or self._began is None:
            return True
        now = self._clock()
        return now - self._printed_at >= min(60.0, max(5.0, (now - self._began[1]) / 50))

    def _print_line(self) -> None:
        self._printed_step, self._printed_at = self._done, self._clock()
        numbers = "  ".join(f"{label} {value}" for label, value in self._ordered())
        self.note(f"step {self._done}/{self._total}  {numbers}")


class _Stream:
    """A text stream that falls silent at its first error: the reader is gone (`| head`), the disk is full.

    Rich itself answers a broken pipe with SystemExit, and lets other errors through.
    """

    def __init__(self, stream: IO[str]):
        self._stream = stream
        self._silent = False

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, output: Callable[..., object], *arguments: str) -> None:
        if not self._silent:
            try:
                output(*arguments)
            except (OSError, ValueError):  # ValueError: the file is closed
                self._silent = True

    def __getattr__(self, name: str) -> Any:
        """Whether it is a terminal, its encoding, ..."""
        return getattr(self._stream, name)


def _short(number: float) -> str:
    """Three digits and a unit: 950, 12.3k, 1.25M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
