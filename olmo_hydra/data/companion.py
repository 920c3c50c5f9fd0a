"""The index beside a token file, `<same name>.csv.gz`: where its documents begin and end, and what they are called.

Its lines are `start,end,name,...`, in tokens: the format of Dolma, of which OLMo-core reads the first two fields.
Names are percent-encoded here, so that none breaks a line; one that is no UTF-8 comes back as Python reads it from a
folder.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from olmo_hydra.config.errors import RequestError

ENDING = ".csv.gz"


class Entry(NamedTuple):
    """A document of a token file: its tokens are `[start:end]`, the last of them its end.

    `more` are further fields of the line. In a prepared corpus they are the bytes and the sha256 of its text as UTF-8.
    """

    start: int
    end: int
    name: str
    more: tuple[str, ...] = ()

    def line(self) -> str:
        """As it stands in the index."""
        name = quote(self.name, safe="/ :=@+", errors="surrogateescape")
        return ",".join((str(self.start), str(self.end), name, *self.more)) + "\n"


def entries(index: Path) -> Iterator[Entry]:
    """The documents of an index, in order.

    Raises:
      RequestError: It cannot be read; names the line.
    """
    n_read = 0
    try:
        with gzip.open(index, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                start, end, *fields = line.rstrip("\n").split(",")
                name, *more = fields or ("",)
                yield Entry(int(start), int(end), unquote(name, errors="surrogateescape"), tuple(more))
                n_read += 1
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RequestError(
            f"cannot be read, at line {n_read + 1}", where=str(index), instead="a whole file, or none"
        ) from error
