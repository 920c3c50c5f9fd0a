"""Number formats a config may name. An enumeration, so that a misspelt one is refused when the config is composed."""

from enum import Enum


class DType(Enum):
    """Array element types, spelt as numpy and JAX spell them."""

    float32 = "float32"
    bfloat16 = "bfloat16"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return {DType.float32: 4, DType.bfloat16: 2}[self]
