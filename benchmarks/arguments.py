"""What the benchmarks' command lines take; of anything else argparse says what is wrong, with status 2."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 on")
    return int(text)


def amount(text: str) -> float:
    """A finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above zero")
    return value


def folder(text: str) -> Path:
    """A folder that results can be written to: it is made before anything is measured."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def some_of(known: Sequence[str]) -> Callable[[str], str]:
    """Names among these, with commas between."""

    def names(text: str) -> str:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0] or 'nothing'} is none of {', '.join(known)}")
        return text

    return names
