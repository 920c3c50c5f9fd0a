"""Numbers and times as people read them."""

from datetime import datetime


def count(number: float | None) -> str:
    """An exact count with thousands separated."""
    return "unknown" if number is None else f"{number:,.0f}"


def short(number: float) -> str:
    """Three digits and a unit: 950, 12.3k, 0.92M, 7.3B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def size(n_bytes: float) -> str:
    """Bytes in decimal units."""
    for unit, base in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= base:
            return f"{n_bytes / base:.3g} {unit}"
    return f"{n_bytes:.0f} bytes"


def bits(value: float | None) -> str:
    """Bits per byte, or their standard error. None is what a row holds of a number that is not finite."""
    return "nan" if value is None else f"{value:.3f}"


def spread(domain: dict) -> str:
    """The standard error of a domain's bits per byte; one document has none."""
    return bits(domain["stderr"]) if domain["documents"] > 1 else ""


def ratio(value: float | None, over: float) -> str:
    """A ratio to three decimals, as `bits` writes what is not finite."""
    return bits(None if value is None else value / over)


def percent(share: float) -> str:
    """A share as a percentage of three digits, however small."""
    return f"{100 * share:.3g}%"


def moment(iso: str) -> str:
    """An ISO 8601 time as date and time of day, in UTC."""
    return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M:%S")


def duration(first: str, last: str) -> str:
    """Time between two ISO 8601 times."""
    return span((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds())


def span(exact: float) -> str:
    """Seconds, in the two largest units that fit; less than ten of them with a tenth."""
    seconds = round(exact)
    for unit, length, lower, lower_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length} {unit} {seconds % length // lower_length} {lower}"
    return f"{exact:.1f} s" if 0 < exact < 9.95 else f"{seconds} s"
