import numpy as np
import pytest

from balancer.load.inputs import VARIABLE_DIMENSION, InputShape, first_text, tensor


def made(datatype: str, shape: tuple[int, ...], rows: int = 3, max_batch_size: int = 8) -> np.ndarray:
    return tensor(InputShape("X", datatype, shape), rows, max_batch_size, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP32", np.float32), ("FP16", np.float16), ("INT64", np.int64), ("BOOL", np.bool_)]
)
def test_a_batch_has_its_rows_and_type(datatype: str, dtype: type) -> None:
    array = made(datatype, (-1, 4))
    assert array.shape == (3, 4)
    assert array.dtype == dtype


def test_open_dimensions_get_a_length() -> None:
    assert made("FP32", (-1, -1)).shape == (3, VARIABLE_DIMENSION)
    assert made("FP32", (-1,), max_batch_size=0).shape == (3,)


def test_strings_are_bytes_objects() -> None:
    array = made("BYTES", (-1, 2))
    assert array.shape == (3, 2)
    assert all(isinstance(text, bytes) and len(text) == 8 for text in array.flat)


@pytest.mark.parametrize(
    ("shape", "rows", "limit", "named"), [((-1, 4), 9, 8, "give at most 8"), ((4,), 2, 0, "does not batch")]
)
def test_rows_that_do_not_fit_are_refused(shape: tuple[int, ...], rows: int, limit: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        made("FP32", shape, rows, limit)


def test_a_type_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ValueError, match="input X has the data type BF16"):
        made("BF16", (-1, 4))


def test_the_first_string_of_a_tensor_is_read() -> None:
    assert first_text(b"\x02\0\0\0w1\x02\0\0\0w2") == "w1"
    assert first_text(b"") == ""
