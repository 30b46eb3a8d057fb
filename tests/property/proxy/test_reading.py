"""What the proxy reads of an inference is what protobuf reads, whatever the bytes."""

import contextlib
import json
from typing import Any

import numpy as np
import tritonclient.http as by_http
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.examples import examples
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.utils import np_to_triton_dtype

from balancer.bounds import OutOfBoundsError
from balancer.extproc.inference_bytes import digest, read, with_id
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.messages import INFER
from balancer.proxy.rest.reading import DTYPES, OutputFormat, WantedOutputs, read_request
from balancer.proxy.rest.service import UnwritableError, binary_parts, json_parts

_HEADERS = {":path": INFER, "content-type": "application/grpc"}
_TEXT = st.text(max_size=20)
_VALUES = st.one_of(st.booleans(), st.integers(0, 2**40), _TEXT)


@st.composite
def requests(draw: st.DrawFn) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(
        model_name=draw(st.text(min_size=1, max_size=20)), model_version=draw(_TEXT), id=draw(_TEXT)
    )
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(st.integers(-1, 2**40), max_size=3))
        message.inputs.add(name=draw(_TEXT), datatype="FP32", shape=shape)
        message.raw_input_contents.append(draw(st.binary(max_size=30)))
    known = st.sampled_from(["sequence_id", "priority", "timeout", "sequence_start", "mine"])
    for key, value in draw(st.dictionaries(known, _VALUES, max_size=5)).items():
        parameter = message.parameters[key]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, str):
            parameter.string_param = value
        elif draw(st.booleans()):
            parameter.int64_param = value
        else:
            parameter.uint64_param = value
    return message


@given(requests())
def test_what_is_read_is_what_protobuf_reads(message: service_pb2.ModelInferRequest) -> None:
    try:
        call = read_call(_HEADERS, read(message.SerializeToString()).fields, HeaderNames())
    except OutOfBoundsError:
        assert any(each.uint64_param > 32_767 for each in message.parameters.values())
        return
    request = call.request
    assert (request.model, request.version) == (message.model_name, message.model_version)
    assert call.triton_request_id == message.id
    first = next((size for each in message.inputs for size in each.shape), 1)
    assert request.rows == (first if 1 <= first <= 65_536 else 1)
    sequence = message.parameters.get("sequence_id")
    named = sequence is not None and (
        sequence.int64_param or (sequence.WhichOneof("parameter_choice") == "string_param" and sequence.string_param)
    )
    assert request.sequence == bool(named and str(named) != "0")


@given(requests(), requests())
def test_of_two_messages_in_one_the_last_counts_as_protobuf_has_it(
    one: service_pb2.ModelInferRequest, other: service_pb2.ModelInferRequest
) -> None:
    joined = one.SerializeToString() + other.SerializeToString()
    both = service_pb2.ModelInferRequest.FromString(joined)
    found = read(joined).fields
    assert tuple(found["model_name"]) == (both.model_name,)
    assert [*found["id"]] == ([both.id] if both.id else [])


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_never_read_otherwise_than_by_protobuf(data: bytes) -> None:
    try:
        found = read(data)
    except OutOfBoundsError:
        return
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    assert "".join(str(each) for each in found.fields["model_name"]) == message.model_name


@given(requests(), _TEXT, _TEXT)
def test_an_id_does_not_change_a_digest_and_all_else_does(
    message: service_pb2.ModelInferRequest, one: str, other: str
) -> None:
    digests = []
    for name in (one, other):
        message.id = name
        data = message.SerializeToString()
        digests.append(digest(data, read(data).id_spans))
    assert digests[0] == digests[1]
    message.model_name += "x"
    data = message.SerializeToString()
    assert digest(data, read(data).id_spans) != digests[0]


@given(_TEXT, _TEXT, st.binary(max_size=20))
def test_an_answer_gets_another_id_and_keeps_the_rest(before: str, after: str, content: bytes) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m", id=before, raw_output_contents=[content])
    changed = service_pb2.ModelInferResponse.FromString(with_id(answer.SerializeToString(), after))
    answer.id = after
    assert changed == answer


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


@settings(max_examples=examples(300))
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


@settings(max_examples=examples(300))
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


@settings(max_examples=examples(1000))
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


@settings(max_examples=examples(300))
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
