"""REST's requests and answers as gRPC's: held against Triton's own client libraries, and against any bytes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import tritonclient.http as by_http
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.utils import np_to_triton_dtype

from balancer.bounds import OutOfBoundsError
from balancer.extproc.inference_bytes import read
from balancer.proxy.rest.reading import DTYPES, OutputFormat, WantedOutputs, read_request
from balancer.proxy.rest.service import UnwritableError, binary_parts, json_parts

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SHAPES = arrays.array_shapes(max_dims=3, max_side=4, min_side=0)


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    """Of any type that JSON can carry."""
    shape = draw(SHAPES)
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
        return draw(arrays.arrays(dtype, shape))
    values = draw(st.lists(TEXTS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(values, np.object_).reshape(shape)


def of_client(tensor: np.ndarray, *, binary: bool, name: str = "X") -> by_http.InferInput:
    value = by_http.InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
    value.set_data_from_numpy(tensor, binary_data=binary)
    return value


@settings(max_examples=300)
@given(st.lists(st.tuples(tensors(), st.booleans()), min_size=1, max_size=3), st.booleans(), TEXTS)
def test_what_a_client_sends_is_what_the_client_of_grpc_sends(
    inputs: list[tuple[np.ndarray, bool]], binary_out: bool, name: str
) -> None:
    given_ = [of_client(tensor, binary=binary, name=str(n)) for n, (tensor, binary) in enumerate(inputs)]
    outputs = [by_http.InferRequestedOutput("Y", binary_data=binary_out)]
    body, json_bytes = by_http.InferenceServerClient.generate_request_body(
        given_, outputs=outputs, request_id=name, sequence_id=3, sequence_start=True, priority=2, timeout=5
    )
    data, wanted = read_request(body, json_bytes, "m", "1")
    message = service_pb2.ModelInferRequest.FromString(data)
    for n, ((tensor, _), found, raw) in enumerate(zip(inputs, message.inputs, message.raw_input_contents, strict=True)):
        expected = InferInput(str(n), list(tensor.shape), np_to_triton_dtype(tensor.dtype))
        expected.set_data_from_numpy(tensor)
        assert found == expected._get_tensor()
        of_json = np.array_equal(np.frombuffer(raw, np.uint8), np.frombuffer(expected._get_content() or b"", np.uint8))
        # JSON has one NaN, and many have its bits.
        assert of_json or (tensor.dtype.kind == "f" and np.isnan(tensor).any())
    fields = read(data).fields
    assert {*fields["parameters.key"]} == {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
    assert wanted.of("Y") is (OutputFormat.BINARY if binary_out else OutputFormat.JSON)
    assert message.id == name


@settings(max_examples=300)
@given(st.lists(tensors(), min_size=1, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3), TEXTS)
def test_what_a_worker_answers_is_what_the_client_reads(
    outputs: list[np.ndarray], binary: list[bool], name: str
) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="1", id=name)
    for n, tensor in enumerate(outputs):
        kind = np_to_triton_dtype(tensor.dtype)
        answer.outputs.add(name=str(n), datatype=kind, shape=tensor.shape)
        raw = InferInput("", list(tensor.shape), kind)
        raw.set_data_from_numpy(tensor)
        answer.raw_output_contents.append(raw._get_content() or b"")
    wanted = WantedOutputs(
        {str(n): OutputFormat.BINARY if binary[n] else OutputFormat.JSON for n in range(len(outputs))}
    )
    text = b"".join(json_parts(answer, wanted))
    tail = b"".join(binary_parts(answer, wanted))
    found = by_http.InferResult.from_response_body(text + tail, header_length=len(text) if tail else None)
    assert found.get_response().get("id", "") == name
    for n, tensor in enumerate(outputs):
        got = found.as_numpy(str(n))
        if tensor.dtype == np.object_:
            texts = [each.decode() if isinstance(each, bytes) else each for each in got.ravel()]
            assert texts == tensor.ravel().tolist()
        else:
            np.testing.assert_array_equal(got.astype(tensor.dtype), tensor)


def read_or_refused(body: bytes, json_bytes: int | None, model: str = "m") -> bytes | None:
    """None: it was refused."""
    try:
        return read_request(body, json_bytes, model, "")[0]
    except OutOfBoundsError as error:
        REFUSED.append(error)
        return None


REFUSED: list[OutOfBoundsError] = []
"""What was refused, for tests that look at it."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = {
    "name": st.just("X") | JSON,
    "datatype": st.sampled_from([*DTYPES, "BYTES", "FP16", "FP99"]) | JSON,
    "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
    "data": st.lists(st.integers(-300, 300) | st.text(max_size=3) | st.floats() | JSON, max_size=6) | JSON,
    "parameters": st.dictionaries(
        st.sampled_from(
            ["binary_data_size", "shared_memory_region", "shared_memory_offset", "classification", "binary_data"]
        ),
        st.integers(-1, 40) | JSON,
        max_size=2,
    )
    | JSON,
}
TENSOR = st.fixed_dictionaries({}, optional=MEMBERS)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "inputs": st.lists(TENSOR | JSON, max_size=3) | JSON,
        "outputs": st.lists(TENSOR | JSON, max_size=3) | JSON,
        "parameters": st.dictionaries(
            st.sampled_from(
                ["sequence_id", "priority", "timeout", "sequence_start", "binary_data_output", "triton_x", "y"]
            ),
            JSON,
        )
        | JSON,
    },
)


@settings(max_examples=1000)
@given(REQUEST | JSON, st.none() | st.integers(-1, 200), st.binary(max_size=40), TEXTS)
@example({"inputs": [], "id": "\ud800"}, None, b"", "m")
@example({"inputs": [{"name": "\ud800", "datatype": "BYTES", "shape": [1], "data": ["\ud800"]}]}, None, b"", "m")
@example({"inputs": [{"name": "X", "datatype": "INT8", "shape": [2**62, 4], "data": []}]}, None, b"", "m")
def test_any_request_is_read_or_refused_in_words(content: Any, less: int | None, tail: bytes, model: str) -> None:
    text = json.dumps(content).encode()
    data = read_or_refused(text + tail, None if less is None else max(1, len(text) - less + 100), model)
    if data is None:
        assert str(REFUSED[-1])
        assert REFUSED[-1].field in {"json", "id", "parameters", "inputs", "outputs", "data"}
        return
    message = service_pb2.ModelInferRequest.FromString(data)
    assert message.model_name == model
    with_bytes = [each for each in message.inputs if "shared_memory_region" not in each.parameters]
    assert len(message.raw_input_contents) == len(with_bytes)


def test_arrays_that_nest_deep_are_walked_once() -> None:
    depth = 900
    text = '{"inputs":[{"name":"X","datatype":"INT8","shape":[100000],"data":' + "[" * depth + "]" * depth + "}]}"
    wide = text.replace("[]", "[" + ",".join(["[1]"] * 100_000) + "]")
    data, _ = read_request(wide.encode(), None, "m", "")
    assert service_pb2.ModelInferRequest.FromString(data).raw_input_contents[0] == b"\1" * 100_000
    assert read_or_refused(text.replace("[" * depth, "[" * 200_000).encode(), None) is None
    assert REFUSED[-1].field == "json"


@settings(max_examples=300)
@given(
    st.sampled_from([*DTYPES, "BYTES", "FP16", "", "FP99"]),
    st.lists(st.integers(-2, 2**40), max_size=3),
    st.binary(max_size=40),
    st.sampled_from(list(OutputFormat)),
)
def test_any_answer_of_a_worker_is_written_or_an_error(
    datatype: str, shape: list[int], raw: bytes, how: OutputFormat
) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="Y", datatype=datatype, shape=shape)
    answer.raw_output_contents.append(raw)
    with contextlib.suppress(UnwritableError):
        json.loads(b"".join(json_parts(answer, WantedOutputs({}, how))).decode(errors="replace"))
