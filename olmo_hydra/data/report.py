"""Who waits is told what goes on."""

from collections.abc import Callable

Report = Callable[[str], None]  # receives one line of progress at a time
