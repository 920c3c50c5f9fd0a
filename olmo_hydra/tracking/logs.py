"""The log of one process: its warnings, in the run directory."""

import io
import logging
from pathlib import Path

from olmo_hydra.tracking.files import open_to_append


class RunLog(logging.StreamHandler[io.TextIOWrapper]):
    """A handler for a log file of a run. Where the disk is full a line is lost, and nothing else.

    Raises:
      RequestError: The file is a link or the like, or cannot be written.
    """

    def __init__(self, path: Path):
        super().__init__(io.TextIOWrapper(open_to_append(path), "utf-8", errors="backslashreplace", write_through=True))
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:
        """Says nothing: who fills the disk is told so by the rows, which matter."""

    def close(self) -> None:
        """Closes the file."""
        self.stream.close()
        super().close()
