"""What strangers send: the module reads no byte too many, holds no more than its bounds, and nothing passes the table.

The program under test ends at the first mistake that a sanitizer sees, and then each test fails.
"""

import gzip
import itertools
import json
import random
import struct
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz.request import fuzzed
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.c_programs import SANITIZED
from support.understand import INFER, Reader, Refused, Understood, fields_of, fields_of_json, framed, gateway
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.extproc.kserve import SERVICE

GRPC = {"content-type": "application/grpc", ":path": INFER}
REST = {"content-type": "application/json", ":path": "/v2/models/m/infer"}
TENSOR_BYTES = 1_000_000
fixtures = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def inference(**fields: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="model", model_version="1", id="mine", **fields)
    message.parameters["sequence_id"].int64_param = 42
    message.parameters["priority"].uint64_param = 3
    message.parameters["colour"].string_param = "red"
    message.parameters["half"].double_param = 0.5
    message.inputs.add(name="INPUT", datatype="FP32", shape=[8, 3])
    message.outputs.add(name="OUTPUT")
    message.raw_input_contents.append(b"\x0a\x01x" * 8)
    return message


def field(number: int, value: bytes) -> bytes:
    """One of protobuf's, by its length."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def compressed(message: bytes) -> bytes:
    return b"\1" + framed(gzip.compress(message))[1:]


Form = Callable[[bytes], bytes]
in_both_forms = pytest.mark.parametrize("form", [framed, compressed])


def refusal(read: Understood | Refused) -> str:
    assert isinstance(read, Refused), read
    assert len(read.text) < 1000
    return read.text


@given(seed=st.integers(0, 2**32), data=st.data())
@fixtures
def test_a_message_that_triton_takes_is_never_understood_as_another(
    reader: Reader, seed: int, data: st.DataObject
) -> None:
    generator = random.Random(seed)
    message = bytearray(inference().SerializeToString())
    for _ in range(generator.randint(1, 4)):
        at, end = sorted(generator.choices(range(len(message) + 1), k=2))
        match generator.randrange(4):
            case 0:
                message[at : at + 1] = bytes([generator.randrange(256)])
            case 1:
                message[at:at] = message[at:end]
            case 2:
                del message[at : min(end, at + 8)]
            case 3:
                message[at:at] = inference().SerializeToString()[: generator.randrange(40)]
    chunk = data.draw(st.integers(1, 300))
    body = framed(bytes(message))
    read = reader.ask(GRPC, [body[start : start + chunk] for start in range(0, len(body), chunk)])
    try:
        triton = service_pb2.ModelInferRequest.FromString(bytes(message))
    except DecodeError:
        return
    expected = gateway(GRPC, fields_of(triton))
    if isinstance(read, Understood) and isinstance(expected, Understood):
        # Inputs behind the tensors are not waited for.
        assert read in {expected, expected._replace(rows=1)}
    else:
        assert isinstance(read, Refused)


def test_a_message_that_ends_early_is_refused_as_envoy_refuses_it(reader: Reader) -> None:
    body = framed(inference().SerializeToString())
    whole = reader.ask(GRPC, [body])
    outcomes = [reader.ask(GRPC, [body[:end]]) for end in range(len(body))]
    words = [refusal(outcome) for outcome in itertools.takewhile(lambda read: isinstance(read, Refused), outcomes)]
    assert words[0] == "did not receive enough data to form a message."
    assert set(words[1:]) == {"Did not receive enough data for gRPC message parsing."}
    # From the outputs on, nothing that is missing concerns routing.
    assert set(outcomes[len(words) :]) == {whole}


def test_without_a_body_nothing_is_named(reader: Reader) -> None:
    assert reader.ask(GRPC, None) == gateway(GRPC, {})
    ready = GRPC | {":path": SERVICE + "ModelReady"}
    assert reader.ask(ready, None) == gateway(ready, {})
    assert reader.ask(ready, [framed(b"")]) == gateway(ready, {"name": [], "version": []})


@pytest.mark.parametrize(("number", "name"), [(1, "model_name"), (2, "model_version"), (3, "id"), (4, "parameters")])
@in_both_forms
def test_nothing_that_decides_comes_behind_the_tensors(reader: Reader, form: Form, number: int, name: str) -> None:
    body = form(inference().SerializeToString() + field(7, b"x" * TENSOR_BYTES) + field(number, b""))
    chunks = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    assert refusal(reader.ask(GRPC, chunks)) == f"{name}: comes after the tensors, which is refused"


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ((1,), "model_name"),
        ((2,), "model_version"),
        ((3,), "id"),
        ((4, 1), "parameters.key"),
        ((4, 2, 3), "parameters.value.string_param"),
    ],
)
def test_a_text_that_is_none_is_refused_as_envoy_refuses_it(reader: Reader, before: tuple[int, ...], name: str) -> None:
    for text in (b"a\xff\xfeb", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        body = framed(reduce(lambda inner, number: field(number, inner), reversed(before), text))
        for chunks in ([body], [bytes([byte]) for byte in body]):
            assert refusal(reader.ask(GRPC, chunks)) == f"{name}: is not UTF-8, which is refused"


@pytest.mark.parametrize("length", [257, 60_000])
def test_a_name_that_is_too_long_is_counted_and_not_kept(reader: Reader, length: int) -> None:
    message = service_pb2.ModelInferRequest(model_name="é" * (length // 2) + "x")
    assert reader.ask(GRPC, [framed(message.SerializeToString())]) == gateway(GRPC, fields_of(message))


def test_what_envoy_would_not_hand_over_is_refused_in_its_words(reader: Reader) -> None:
    long = service_pb2.ModelInferRequest(model_name="x" * 2_000_000)
    shaped, named = inference(), inference()
    shaped.inputs[0].shape.extend([1] * 200_000)
    for number in range(2000):
        named.parameters[f"key-{number}"].int64_param = number
    words = ["model_name: has more than 65536 bytes", "inputs.shape: has more than 1024 values"]
    for message, text in zip((long, shaped), words, strict=True):
        body = framed(message.SerializeToString())
        chunks = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
        assert refusal(reader.ask(GRPC, chunks)) == f"{text}, which is refused"
    body = framed(named.SerializeToString())
    assert refusal(reader.ask(GRPC, [body])) == "parameters.key: has more than 1024 values, which is refused"


def test_parameters_are_counted(reader: Reader) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    for count in range(bounds.MAX_PARAMETERS + 1):
        body = framed(message.SerializeToString())
        assert isinstance(reader.ask(GRPC, [body]), Understood)
        message.parameters[f"key-{count}"].bool_param = True
    expected = gateway(GRPC, fields_of(message))
    assert isinstance(expected, Refused)
    assert reader.ask(GRPC, [framed(message.SerializeToString())]) == expected


def test_the_bounds_are_those_of_envoy() -> None:
    text = (Path(__file__).parents[3] / "envoy" / "bootstrap.yaml").read_text()
    assert f"most_values, most_bytes = {bounds.MAX_FIELD_VALUES}, {bounds.MAX_FIELD_BYTES}" in str(yaml.safe_load(text))
    assert f"request_body_buffer_limit: {bounds.MAX_PROMPT_BYTES}" in text


@pytest.mark.parametrize(
    "body",
    [
        b"\x0b",  # a group begins
        b"\x0c",  # a group ends
        b"\x0e",  # no type of field
        b"\x00",  # the field 0
        b"\x80" * 10 + b"\x01",  # a number that does not end
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length beyond the message
        b"\x0a\x05abc",
        field(4, b"\x0a\x05abc"),
        field(5, field(3, b"\x80")) + b"\0",
        field(5, b"\x18\x80") + b"\0",
        b"\x0d\x00" + b"\0" * 2,
    ],
)
def test_what_is_no_message_is_refused(reader: Reader, body: bytes) -> None:
    for chunks in ([framed(body)], [bytes([byte]) for byte in framed(body)]):
        assert refusal(reader.ask(GRPC, chunks)) == "message: is not one of protobuf, which is refused"


def test_tensors_are_not_held(reader: Reader) -> None:
    typed = service_pb2.ModelInferRequest(model_name="m")
    typed.inputs.add(name="INPUT", shape=[8]).contents.bytes_contents.append(b"x" * TENSOR_BYTES)
    raw = inference(raw_input_contents=[b"x" * TENSOR_BYTES])
    for message in (typed, raw):
        body = framed(message.SerializeToString())
        read = reader.ask(GRPC, [body[at : at + 64] for at in range(0, len(body), 64)])
        assert read == gateway(GRPC, fields_of(message))
        assert reader.held_bytes < 256


@in_both_forms
def test_no_more_than_the_bound_is_held_before_the_tensors(reader: Reader, form: Form) -> None:
    body = form(service_pb2.ModelInferRequest(model_name="m").SerializeToString() + field(99, b"x" * TENSOR_BYTES))
    read = reader.ask(GRPC, [body[at : at + 64] for at in range(0, len(body), 64)])
    words = f"message: has more than {bounds.MAX_PREFIX_BYTES} bytes before its tensors, which is refused"
    assert refusal(read) == words
    assert reader.held_bytes <= bounds.MAX_PREFIX_BYTES + 128


def test_json_is_read_until_all_is_known(reader: Reader) -> None:
    start = b'{"id": "a", "parameters": {"sequence_id": 5}, "inputs": [{"name": "A", "shape": [4, 2], "data": ['
    chunks = [start, *[b"[1.0, 2.0]," * 100] * 100, b"[1.0, 2.0]]}]}"]
    read = reader.ask(REST, chunks)
    assert isinstance(read, Understood)
    assert (read.triton_id, read.rows, read.sequence) == (b"a", 4, True)
    assert reader.held_bytes == len(start)


def test_json_beyond_the_bound_is_not_waited_for(reader: Reader) -> None:
    start = b'{"inputs": [{"name": "A", "shape": [4], "data": ['
    chunks = [start, *[b"1.0," * 4096] * 100, b'1.0]}], "parameters": {"priority": 9}}']
    read = reader.ask(REST, chunks)
    assert isinstance(read, Understood)
    assert (read.rows, read.priority) == (4, 0)
    assert reader.held_bytes <= bounds.MAX_JSON_BYTES + 4096 * 4


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b'"parameters"',
        b"{" * 100_000,
        b'{"x": ' * 100_000,
        b'{"inputs": ' + b"[" * 100_000,
        b'{"inputs": [' + b'{"shape": [' * 100_000,
        b'{"parameters": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
        b'{"id": "a',
        b'{"id": "\\',
        b'{"id": "\\u12',
        b'{"id": "\\ud83d',
        b'{"id": "\\q"}',
        b'{"id" "a"}',
        b'{"id": ]}',
        b'{"parameters": [}]}',
        b'{"parameters": {"priority": 1e999999}}',
        b'{"parameters": {"priority": ' + b"9" * 100_000 + b"}}",
        b'{"inputs": [{"shape": [' + b"9" * 100_000 + b"]}]}",
        b'{"inputs": [{"shape": [' + b"-1," * 100_000 + b"]}]}",
        b'{"' + b"k" * 1_000_000 + b'": 1}',
        b"\xef\xbb\xbf",
        b"\0" * 1000,
    ],
)
def test_what_is_wrong_with_json_is_for_triton_to_say(reader: Reader, body: bytes) -> None:
    expected = gateway(REST, {})
    assert reader.ask(REST, [body]) == expected
    assert reader.ask(REST, [body[at : at + 7] for at in range(0, min(len(body), 20_000), 7)]) == expected


def test_json_that_ends_early_says_what_it_said(reader: Reader) -> None:
    body = json.dumps(
        {"id": "é🙂", "inputs": [{"shape": [8], "data": [[1], ["a\\"]]}], "parameters": {"sequence_id": "x\n"}}
    ).encode()
    whole, empty = reader.ask(REST, [body]), gateway(REST, {})
    for end in range(len(body)):
        read = reader.ask(REST, [body[:end]])
        assert isinstance(read, Understood)
        assert read.rows in {1, 8}
        assert end or read == empty
    assert isinstance(whole, Understood)
    assert (whole.triton_id, whole.rows, whole.sequence) == ("é🙂".encode(), 8, True)


@pytest.mark.parametrize(
    ("name", "body"), [("id", b'{"id": "\xff"}'), ("sequence_id", b'{"parameters": {"sequence_id": "\xff"}}')]
)
def test_a_text_in_json_that_is_none_is_refused(reader: Reader, name: str, body: bytes) -> None:
    assert refusal(reader.ask(REST, [body])) == f"{name}: is not UTF-8, which is refused"


def test_parameters_in_json_are_counted(reader: Reader) -> None:
    body = json.dumps({"parameters": {f"key-{number}": number for number in range(bounds.MAX_PARAMETERS + 1)}}).encode()
    assert reader.ask(REST, [body]) == gateway(REST, fields_of_json(body))
    assert refusal(reader.ask(REST, [body])) == "parameters: 257 is refused; it counts 256 at most"


def test_zero_is_no_sequence_however_it_is_written(reader: Reader) -> None:
    for zero in (b"0", b"-0", b'"0"', b'""'):
        read = reader.ask(REST, [b'{"parameters": {"sequence_id": ' + zero + b"}}"])
        assert isinstance(read, Understood)
        assert not read.sequence


def test_a_surrogate_without_its_other_half_has_a_key_all_the_same(reader: Reader) -> None:
    body = b'{"parameters": {"sequence_id": "\\ud800"}}'
    fields = {"parameters.key": ["sequence_id"], "parameters.value.string_param": ["\ud800"]}
    assert reader.ask(REST, [body]) == gateway(REST, fields)


def test_json_of_an_unknown_encoding_is_not_read(reader: Reader) -> None:
    headers = REST | {"content-encoding": "br"}
    assert reader.ask(headers, [b'{"parameters": {"priority": 9}}']) == gateway(headers, {})
    assert reader.held_bytes == 0


@pytest.mark.parametrize(
    ("length", "priority"),
    [("32", 9), (" 32", 9), ("+32x", 9), ("9" * 30, 9), ("31", 9), ("5", 0), ("0", 0), ("", 0), ("x", 0), ("-32", 0)],
)
def test_the_length_of_json_is_read_as_triton_reads_it(reader: Reader, length: str, priority: int) -> None:
    headers = REST | {"inference-header-content-length": length}
    read = reader.ask(headers, [b'{"parameters": {"priority": 9}}\n'])
    assert isinstance(read, Understood)
    assert read.priority == priority


def test_json_may_begin_with_the_mark_of_utf_8(reader: Reader) -> None:
    body = b'{"parameters": {"priority": 9}}'
    assert reader.ask(REST, [b"\xef", b"\xbb\xbf" + body]) == reader.ask(REST, [body])


def test_a_frame_may_claim_four_gigabytes(reader: Reader) -> None:
    body = b"\0\xff\xff\xff\xff" + inference().SerializeToString()
    assert isinstance(reader.ask(GRPC, [body]), Understood)
    huge = b"\0" + struct.pack(">I", 2**32 - 1) + field(1, b"m") + varint(7 << 3 | 2) + varint(2**32 - 100)
    assert isinstance(reader.ask(GRPC, [huge]), Understood)


@pytest.mark.parametrize("options", [SANITIZED, ["-O2"]], ids=["sanitized", "optimised"])
def test_mutations_of_honest_requests(tmp_path: Path, options: list[str]) -> None:
    fuzzed(tmp_path, inputs=10_000, seed=1, options=options)
