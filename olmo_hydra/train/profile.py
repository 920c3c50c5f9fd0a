"""`train.profile`: a trace of some updates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from olmo_hydra.tracking.trace import operations, read, traces
from olmo_hydra.train.clock import Clock


class Profile:
    """Traces the updates of one start that `train.profile` names, with what the loop does between them.

    One process of a run writes it: all run the same program. Nothing of the run's numbers changes, and nothing that
    goes wrong with a trace ends the run: it is noted, and the event `profile_failed`.

    Args:
      updates: The first and the last; None for no trace.
      done: Updates that the state has seen when the loop begins: what is behind it is not traced.
      end: The update after which the loop ends: nor is what comes later.
      folder: Receives the trace, in the layout that XProf and TensorBoard read.
      clock: Of the run. What the trace holds the loop up is time of `save`.
      tell: Records an event.
      note: Tells the person who waits.
    """

    def __init__(
        self, updates: list[int] | None, done: int, end: int, folder: Path, clock: Clock, tell: Any, note: Any
    ):
        first, self._last = updates or (0, 0)
        self._first = max(first, done + 1)
        self._folder, self._clock, self._tell, self._note = folder, clock, tell, note
        self._traced = 0  # the last update that a trace under way holds
        if updates and self._last <= done:
            note(f"train.profile={updates} is behind update {done}, where the run stands: nothing is traced")
        elif updates and self._first > end:
            note(f"train.profile={updates} is after update {end}, where run.stop_at pauses: nothing is traced yet")

    def before(self, update: int, state: Any) -> None:
        """Begins with the first update, once the devices have finished the one before."""
        if update == self._first <= self._last:
            jax.block_until_ready(state)
            with self._clock.spent("save"), self._failing():
                options = jax.profiler.ProfileOptions()
                options.python_tracer_level = 0  # every call of Python would be in it, and take its time
                jax.profiler.start_trace(self._folder, profiler_options=options)
                self._traced = update
        elif self._traced and update <= self._last:
            self._traced = update

    def after(self, update: int, state: Any) -> None:
        """Ends once the devices have finished the last update."""
        if self._traced and update == self._last:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Writes the trace under way, also of a run that ends before the last update."""
        if not self._traced:
            return
        last, self._traced = self._traced, 0
        with self._clock.spent("save"), self._failing():
            jax.profiler.stop_trace()
            trace = traces(self._folder)[-1]
            self._tell(
                "profiled",
                first=self._first,
                last=last,
                trace=str(trace.relative_to(self._folder.parent)),
                operations=operations(read(trace)),
            )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._note(f"no trace of updates {self._first} to {self._last}: {what}")
            self._tell("profile_failed", first=self._first, last=self._last, error=what)
