"""What commands say on standard output."""

from olmo_hydra.config.errors import printable


def say(text: str = "") -> None:
    """Prints lines in which nothing but text reaches the terminal, whatever names of runs, files or domains hold."""
    print("\n".join(map(printable, text.split("\n"))))
