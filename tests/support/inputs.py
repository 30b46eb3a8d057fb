"""Inputs of requests by Triton's own client libraries."""

from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype


def input_of(of: Any, name: str, array: np.ndarray, **options: Any) -> Any:
    """An input for the client library `of`, with the array's shape, type and values."""
    value = of.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    value.set_data_from_numpy(array, **options)
    return value
