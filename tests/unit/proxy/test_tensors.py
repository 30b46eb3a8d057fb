"""Shapes from outside: how many elements they have, and where nobody counts."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.bounds import RefusedInputError
from balancer.proxy.batching import joinable
from balancer.proxy.messages import MOST_RANK, SIZES, TEXT, elements
from balancer.proxy.rest.reading import WantedOutputs, read_request
from balancer.proxy.rest.service import UnwritableError, json_parts

LARGEST = 2**63 - 1


def test_elements_are_counted_up_to_a_number_of_dimensions() -> None:
    assert elements([]) == 1
    assert elements([2, 3, 4]) == 24
    assert elements([LARGEST, 0]) == 0
    assert elements([1] * MOST_RANK) == 1
    assert elements([1] * (MOST_RANK + 1)) is None
    assert elements([LARGEST] * 50_000) is None
    assert elements([2, -1]) is None


def test_a_shape_of_json_with_more_dimensions_is_refused() -> None:
    def body(shape: list[int]) -> bytes:
        return json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [1]}]}).encode()

    read_request(body([1] * MOST_RANK), None, "m", "")
    largest = body([LARGEST] * 49_000)
    assert len(largest) < bounds.MAX_JSON_BYTES
    with pytest.raises(RefusedInputError, match="'shape': it has 49000 dimensions; in JSON 32 at most are read"):
        read_request(largest, None, "m", "")


@pytest.mark.parametrize("datatype", ["FP32", TEXT])
def test_a_request_with_more_dimensions_is_not_joined(datatype: str) -> None:
    def message(dimensions: int) -> bytes:
        found = service_pb2.ModelInferRequest(model_name="m")
        found.inputs.add(name="X", datatype=datatype, shape=[1] * dimensions)
        found.raw_input_contents.append(bytes(SIZES.get(datatype, 4)))
        data: bytes = found.SerializeToString()
        return data

    assert joinable(message(MOST_RANK)) is not None
    assert joinable(message(MOST_RANK + 1)) is None


@pytest.mark.parametrize("datatype", ["FP32", TEXT])
def test_an_answer_with_more_dimensions_is_not_written_as_json(datatype: str) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="Y", datatype=datatype, shape=[1] * (MOST_RANK + 1))
    answer.raw_output_contents.append(bytes(4))
    with pytest.raises(UnwritableError, match="does not match size of output"):
        list(json_parts(answer, WantedOutputs({})))
