"""How sure an answer says it is: of each row the greatest element, and of those the least."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from balancer.proxy.cascading import MOST_BYTES, confidence

TYPES = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}


def answer(values: Any, datatype: str = "FP32", *, shape: list[int] | None = None, name: str = "P") -> bytes:
    """A ModelInferResponse with a label and one tensor, as raw bytes."""
    tensor = np.array(values, TYPES.get(datatype, np.int64))
    message = service_pb2.ModelInferResponse(model_name="m", id="1")
    message.outputs.add(name="LABEL", datatype="INT64", shape=[1])
    message.outputs.add(name=name, datatype=datatype, shape=tensor.shape if shape is None else shape)
    message.raw_output_contents.extend([np.array([7]).tobytes(), tensor.tobytes()])
    data: bytes = message.SerializeToString()
    return data


def explicit(datatype: str, **contents: list[Any]) -> bytes:
    message = service_pb2.ModelInferResponse(model_name="m")
    (count,) = (len(each) for each in contents.values())
    output = message.outputs.add(name="P", datatype=datatype, shape=[1, count])
    for field, values in contents.items():
        getattr(output.contents, field).extend(values)
    data: bytes = message.SerializeToString()
    return data


def test_explicit_contents_are_read_too() -> None:
    assert confidence(explicit("FP32", fp32_contents=[0.25, 0.5]), "P") == 0.5
    assert confidence(explicit("FP64", fp64_contents=[0.25, 0.5]), "P") == 0.5


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("no such output", answer([[0.5]], name="Q")),
        ("integers", answer([[1]], "INT64")),
        ("unknown type", answer([[1]], "FP8")),
        ("not a number", answer([[0.5, float("nan")], [0.5, 0.5]])),
        ("no element", answer([[]])),
        ("no row", answer([], shape=[0, 4])),
        ("fewer bytes than the shape", answer([[0.5, 0.5]], shape=[1, 3])),
        ("more bytes than the shape", answer([[0.5, 0.5]], shape=[1, 1])),
        ("a negative shape", answer([[0.5, 0.5]], shape=[-1, -2])),
        ("a huge shape", answer([[0.5, 0.5]], shape=[2**62, 2**62])),
        ("too many dimensions", answer([[0.5]], shape=[1] * 33)),
        ("half an element", answer([[0.5]])[:-1]),
        ("too large", answer(np.ones((1, MOST_BYTES // 4 + 1)))),
        ("explicit, of another type", explicit("FP32", fp64_contents=[0.5])),
        ("explicit, integers", explicit("INT64", int64_contents=[1])),
        ("nothing", b""),
        ("no message", b"\xff\xff"),
    ],
)
def test_what_cannot_be_read_is_none(what: str, data: bytes) -> None:
    assert confidence(data, "P") is None


def test_the_largest_that_is_read() -> None:
    assert confidence(answer(np.full((2, MOST_BYTES // 8), 0.5)), "P") == 0.5


def test_an_output_without_its_bytes_is_none() -> None:
    message = service_pb2.ModelInferResponse.FromString(answer([[0.5]]))
    del message.raw_output_contents[0]
    assert confidence(message.SerializeToString(), "P") is None
