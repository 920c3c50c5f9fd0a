"""How the chips of a TPU slice lie: a torus of two or three dimensions, written 4x4x8."""

import re

from olmo_hydra.config.errors import RequestError


def parse(text: str, dims: int, hardware: str, key: str = "hardware.topology") -> tuple[int, ...]:
    """The chips along each dimension.

    Args:
      text: As written, `4x4x8`.
      dims: Dimensions of the hardware's torus; 0: it has none.
      hardware: Its name, for the error.
      key: Where it was written, for the error.

    Raises:
      RequestError: That is none, or one of other dimensions.
    """
    sizes = tuple(map(int, text.split("x"))) if re.fullmatch(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})*", text) else ()
    if not dims:
        problem, instead = f"hardware={hardware} has no torus of chips", "hardware.chips=N, and hardware.topology=null"
    elif len(sizes) != dims:
        problem = f"must be the chips along each of {dims} dimensions"
        instead = f"such as hardware.topology={'x'.join(['4'] * dims)}; or hardware.chips=N"
    else:
        return sizes
    raise RequestError(problem, key=key, value=text, instead=instead)


def usual(chips: int, dims: int) -> str | None:
    """The shape in which so many chips are offered: powers of two, as equal as they can be. None: in none.

    2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, ... (docs.cloud.google.com/tpu/docs/tpu7x), 2x2, 2x4, 4x4, ... (.../v6e).
    """
    exponent = chips.bit_length() - 1
    if not dims or chips != 1 << exponent or 0 < exponent < 2:
        return None
    sizes = [1 << (exponent + i) // dims for i in range(dims)]
    return "x".join(map(str, sizes if exponent >= dims else reversed(sizes)))


def offered(chips: int) -> int:
    """The least number of chips, and no less than `chips`, that a slice has."""
    return chips if chips == 1 else max(4, 1 << (chips - 1).bit_length())
