"""What the proxy reads of an inference is what protobuf reads, whatever the bytes."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from balancer.bounds import OutOfBoundsError
from balancer.extproc.inference_bytes import digest, read, with_id
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.messages import INFER

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


@settings(max_examples=300)
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
