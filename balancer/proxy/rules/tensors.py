"""Tensors as KServe's messages have them: types, sizes, and how many elements a shape has. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TEXT = "BYTES"
LENGTH_BYTES = 4
"""Before each element of a text tensor; little-endian."""
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Of the types that JSON can carry beside text."""
ONLY_BINARY = ("FP16", "BF16")
"""Types that it cannot."""
SIZES: Mapping[str, int] = {name: dtype.itemsize for name, dtype in DTYPES.items()} | dict.fromkeys(ONLY_BINARY, 2)
"""Bytes of an element."""
MOST_RANK = 32
"""Dimensions of a shape whose elements are counted: a product of thousands of large numbers takes seconds."""


def elements(shape: Sequence[int]) -> int | None:
    """How many there are; None: not to be told, as there are too many dimensions, or negative ones."""
    if len(shape) > MOST_RANK or any(size < 0 for size in shape):
        return None
    return math.prod(shape)
