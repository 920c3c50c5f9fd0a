"""Commands below a command, all made alike."""

import argparse
from collections.abc import Callable


class Commands:
    """The commands that a parser takes, of which one has to be named."""

    def __init__(self, parser: argparse.ArgumentParser):
        self._parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        self, name: str, what: str, run: Callable[[argparse.Namespace], None] | None = None
    ) -> argparse.ArgumentParser:
        """The parser of one more command, which leaves `run` in what is parsed. None for a group of further ones."""
        parser = self._parsers.add_parser(name, help=what, description=what)
        if run is not None:
            parser.set_defaults(run=run)
        return parser
