"""The header of NumPy's `.npy` files, versions 1 to 3 (numpy.org, reference of `numpy.lib.format`)."""

import ast
from dataclasses import dataclass

import numpy as np

from olmo_hydra.config.errors import RequestError

MAGIC = b"\x93NUMPY"
LONGEST = 1 << 16  # bytes of a file that hold the header of any flat array


@dataclass(frozen=True)
class Header:
    """Type and number of the items of a flat array, and the byte of the file where they begin."""

    dtype: np.dtype
    count: int
    offset: int


def parse(raw: bytes, where: str) -> Header:
    """The header of a file that begins with `raw`.

    Raises:
      RequestError: It cannot be read, or the array is not flat, or of objects.
    """
    length_bytes = {1: 2, 2: 4, 3: 4}.get(raw[6] if len(raw) > 6 else 0)
    try:
        if length_bytes is None:
            raise ValueError(f"there is no version {raw[6] if len(raw) > 6 else 0}")
        begin = 8 + length_bytes
        offset = begin + int.from_bytes(raw[8:begin], "little")
        if offset > len(raw):
            raise ValueError("it is cut off")
        fields = ast.literal_eval(raw[begin:offset].decode("utf-8" if raw[6] == 3 else "latin-1").strip())
        dtype, shape = np.dtype(fields["descr"]), tuple(fields["shape"])
        sizes = [int(n) for n in shape]
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise RequestError(
            f"has a NumPy header that cannot be read ({error})",
            where=f"{where}, at byte 6",
            instead="a whole .npy file",
        ) from error
    if len(sizes) != 1 or sizes[0] < 0 or dtype.hasobject:
        raise RequestError(
            f"holds an array of {dtype} with shape {shape}", where=where, instead="a flat array of numbers"
        )
    return Header(dtype, sizes[0], offset)
