"""Tensors for any model, made from what its metadata says of its inputs."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tritonclient.utils import triton_to_np_dtype

VARIABLE_DIMENSION = 16
"""Length given to a dimension that a model leaves open (-1), other than its batch dimension."""

_STRING_BYTES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class InputShape:
    """One input as the model's metadata names it; the first dimension is the batch where the model batches."""

    name: str
    datatype: str
    """As Triton spells it: FP32, INT64, BYTES and so on."""
    shape: tuple[int, ...]


def tensor(
    declared: InputShape, rows: int, max_batch_size: int, generator: np.random.Generator
) -> npt.NDArray[np.generic]:
    """A tensor that fits the declaration: floats in [0, 1), whole numbers 0 or 1, strings of 8 letters.

    `max_batch_size` is the model's, 0 where Triton does not batch it; such a model takes `rows` only as an open first
    dimension. Raises `ValueError` where it does not take that many rows.
    """
    if max_batch_size and rows > max_batch_size:
        raise ValueError(f"rows is {rows}, more than the model's max_batch_size: give at most {max_batch_size}")
    dimensions = [VARIABLE_DIMENSION if size < 0 else size for size in declared.shape]
    if max_batch_size or declared.shape[:1] == (-1,):
        dimensions[0] = rows
    elif rows != 1:
        raise ValueError(f"rows is {rows}, but the model does not batch and fixes its shape {declared.shape}: give 1")
    return _values(declared, tuple(dimensions), generator)


def _values(declared: InputShape, shape: tuple[int, ...], generator: np.random.Generator) -> npt.NDArray[np.generic]:
    if declared.datatype == "BYTES":
        letters = generator.integers(ord("a"), ord("z") + 1, size=(*shape, _STRING_BYTES), dtype=np.uint8)
        return letters.view(f"S{_STRING_BYTES}").reshape(shape).astype(np.object_)
    dtype = triton_to_np_dtype(declared.datatype)
    if dtype is None or declared.datatype == "BF16":
        raise ValueError(f"input {declared.name} has the data type {declared.datatype}: this generator cannot make it")
    if np.issubdtype(dtype, np.floating):
        return generator.random(shape).astype(dtype)
    return generator.integers(0, 2, size=shape).astype(dtype)


def first_text(raw: bytes) -> str:
    """The first string of a serialised BYTES tensor (four bytes of length, little-endian, then the text)."""
    length = int.from_bytes(raw[:4], "little")
    return raw[4 : 4 + length].decode(errors="replace")


def tensors(
    declared: Sequence[InputShape], rows: int, max_batch_size: int, generator: np.random.Generator
) -> list[npt.NDArray[np.generic]]:
    """One tensor for each input, in order; errors as `tensor`."""
    return [tensor(one, rows, max_batch_size, generator) for one in declared]
