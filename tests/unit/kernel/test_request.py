"""The module understands a request as the gateway does: the same from the same facts, and refused in the same words."""

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.understand import INFER, Reader, Understood, fields_of, fields_of_json, framed, gateway
from tritonclient.grpc import service_pb2

from balancer.bounds import MAX_JSON_BYTES
from balancer.extproc.inference_bytes import TRITON_PROMPT
from balancer.extproc.kserve import METHODS, REST_SERVER, REST_VERBS, SERVICE
from balancer.extproc.names import REQUEST_ID_HEADER

GRPC = {"content-type": "application/grpc", ":path": INFER}
REST = {"content-type": "application/json", ":path": "/v2/models/m/infer"}
fixtures = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

NAMES = st.one_of(st.text(max_size=12), st.text("aé漢🙂'\"\\", max_size=8).map(lambda text: text * 40))
LATIN1 = st.one_of(
    st.text(st.characters(max_codepoint=255, exclude_characters="\n\r\0"), max_size=8), st.text("k\xe9", max_size=300)
)
WHOLE = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "-0",
            "1",
            "7",
            "32767",
            "32768",
            "65536",
            "65537",
            "-1",
            " 5\t",
            "\xa07\x85",
            "1.0",
            "9" * 20,
            "9" * 21,
        ]
    ),
    LATIN1,
)
TIMEOUTS = st.one_of(st.from_regex(r"[0-9]{0,9}[HMSmunx]?", fullmatch=True), LATIN1)
DECIMALS = st.one_of(st.from_regex(r" ?[0-9]{0,21}(\.[0-9]{0,21})? ?", fullmatch=True), LATIN1)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "grpc-timeout": TIMEOUTS,
        "x-batch-rows": WHOLE,
        "x-routing-key": LATIN1,
        "x-sequence-id": LATIN1,
        "x-priority": WHOLE,
        "x-tenant": LATIN1,
        "x-deadline-ms": DECIMALS,
        REQUEST_ID_HEADER: LATIN1,
    },
)
INTEGERS = st.one_of(st.integers(-3, 70_000), st.integers(-(2**63), 2**63 - 1))
KEYS = st.one_of(
    st.sampled_from(["sequence_id", "priority", "timeout", "sequence_start", "sequence_end"]), st.text(max_size=4)
)


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = service_pb2.ModelInferRequest(
        model_name=draw(NAMES),
        model_version=draw(st.one_of(st.just(""), NAMES)),
        id=draw(st.one_of(st.just(""), NAMES)),
    )
    for key in draw(st.lists(KEYS, max_size=6)):
        parameter, kind = (
            message.parameters[key],
            draw(st.sampled_from(["bool", "int64", "string", "double", "uint64", ""])),
        )
        values = {
            "bool": st.booleans(),
            "int64": INTEGERS,
            "string": NAMES,
            "double": st.floats(),
            "uint64": st.one_of(st.integers(0, 70_000), st.integers(0, 2**64 - 1)),
        }
        if kind:
            setattr(parameter, f"{kind}_param", draw(values[kind]))
    for shape in draw(st.lists(st.lists(INTEGERS, max_size=3), max_size=3)):
        name = draw(st.sampled_from(["INPUT", TRITON_PROMPT, TRITON_PROMPT[:-1], TRITON_PROMPT + "s"]))
        each = message.inputs.add(name=name, datatype="FP32", shape=shape)
        each.parameters["binary_data_size"].int64_param = 4
        if draw(st.booleans()):
            each.contents.fp32_contents.extend([1.0] * draw(st.integers(0, 20)))
    for _ in range(draw(st.integers(0, 2))):
        message.outputs.add(name="OUTPUT")
    texts = st.binary(max_size=3).map(lambda text: text * 300)
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=40) | texts, max_size=3)))
    return message


@st.composite
def chunks_of(draw: st.DrawFn, body: bytes) -> list[bytes]:
    cuts = [0, *sorted(draw(st.lists(st.integers(0, len(body)), max_size=6))), len(body)]
    if len(body) < 400 and draw(st.booleans()):
        return [body[at : at + 1] for at in range(len(body))]
    return [body[start:end] for start, end in pairwise(cuts)]


@fixtures
@given(message=messages(), headers=HEADERS, stream=st.booleans(), data=st.data())
def test_a_grpc_inference(
    reader: Reader, message: Any, headers: dict[str, str], stream: bool, data: st.DataObject
) -> None:
    headers = GRPC | headers | ({":path": SERVICE + "ModelStreamInfer"} if stream else {})
    serialised = message.SerializeToString()
    chunks = data.draw(chunks_of(framed(serialised)))
    expected = gateway(headers, fields_of(message), first=serialised if stream else b"")
    assert reader.ask(headers, chunks) == expected


def inference(prompt: bytes, *before: bytes) -> Any:
    """For a language model, with other tensors before its prompt."""
    message = service_pb2.ModelInferRequest(model_name="m")
    for name in (*("INPUT" for _ in before), TRITON_PROMPT):
        message.inputs.add(name=name, datatype="BYTES", shape=[1])
    message.raw_input_contents.extend([*before, len(prompt).to_bytes(4, "little") + prompt])
    return message


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("before_bytes", "prompt_bytes", "is_read"),
    [
        (0, 1, True),
        (0, 0, False),
        (5, 70_000, True),
        (300_000, 600_000, True),
        (0, MAX_JSON_BYTES - 100, True),
        (0, MAX_JSON_BYTES, False),
        (2 * MAX_JSON_BYTES, 5, False),
    ],
)
def test_a_prompt_in_a_stream_is_read_as_far_as_it_may_be_held(
    reader: Reader, before_bytes: int, prompt_bytes: int, is_read: bool, compressed: bool
) -> None:
    headers = GRPC | {":path": SERVICE + "ModelStreamInfer", "x-tenant": "a"}
    message = inference(b"tide" * (prompt_bytes // 4) + b"?" * (prompt_bytes % 4), b"x" * before_bytes)
    serialised = message.SerializeToString()
    body = framed(serialised)
    if compressed:
        headers["grpc-encoding"] = "gzip"
        packed = gzip.compress(serialised)
        body = b"\1" + len(packed).to_bytes(4, "big") + packed
    cuts = [0, 3, 50, 65_541, 66_000, 1_000_000, len(body)]
    chunks = [body[start:end] for start, end in pairwise(sorted({min(cut, len(body)) for cut in cuts}))]
    found = reader.ask(headers, chunks)
    assert found == gateway(headers, fields_of(message), first=serialised)
    assert isinstance(found, Understood)
    assert (found.prompt is not None) == is_read


@pytest.mark.parametrize(("inputs", "is_read"), [(64, True), (65, False)])
def test_a_prompt_is_looked_for_among_so_many_inputs(reader: Reader, inputs: int, is_read: bool) -> None:
    headers = GRPC | {":path": SERVICE + "ModelStreamInfer"}
    message = inference(b"tide", *[b"x"] * (inputs - 1))
    late = service_pb2.ModelInferRequest.FromString(message.SerializeToString())
    late.inputs.add(name="INPUT", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    found = reader.ask(headers, [framed(message.SerializeToString())])
    assert found == gateway(headers, fields_of(message), first=message.SerializeToString())
    assert isinstance(found, Understood)
    assert (found.prompt is not None) == is_read
    assert reader.ask(headers, [framed(late.SerializeToString())]) == gateway(
        headers, fields_of(late), first=late.SerializeToString()
    )


def test_a_prompt_in_one_inference_is_none_of_a_language_model_s(reader: Reader) -> None:
    found = reader.ask(GRPC, [framed(inference(b"tide").SerializeToString())])
    assert isinstance(found, Understood)
    assert found.prompt is None


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.one_of(KEYS, st.just("shape")), inner, max_size=3),
    max_leaves=6,
)
PARAMETERS = st.lists(st.tuples(KEYS, st.one_of(INTEGERS, NAMES, VALUES)), max_size=6)
INPUT = st.fixed_dictionaries(
    {"name": st.text(max_size=3)},
    optional={"shape": st.lists(INTEGERS, max_size=3), "data": VALUES, "parameters": VALUES},
)
MEMBERS = st.one_of(
    st.tuples(st.just("id"), st.one_of(NAMES, VALUES)),
    st.tuples(st.just("parameters"), st.one_of(PARAMETERS.map(dict), st.none())),
    st.tuples(st.just("inputs"), st.one_of(st.lists(INPUT, max_size=3), st.just({}), st.just("none"))),
    st.tuples(st.text(max_size=4), VALUES),
)


def written(members: list[tuple[str, Any]], ascii_only: bool, indent: int | None) -> bytes:
    """An object, in which a name may come twice."""
    parts = [
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=ascii_only, indent=indent)}" for name, value in members
    ]
    return ("{" + " ,\n".join(parts) + "}").encode("utf-8", "surrogatepass")


@fixtures
@given(
    members=st.lists(MEMBERS, max_size=6),
    headers=HEADERS,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    tail=st.binary(max_size=20),
    data=st.data(),
)
def test_a_rest_inference(
    reader: Reader,
    members: list[tuple[str, Any]],
    headers: dict[str, str],
    ascii_only: bool,
    indent: int | None,
    tail: bytes,
    data: st.DataObject,
) -> None:
    body = written(members, ascii_only, indent)
    headers = REST | headers
    expected = gateway(headers, fields_of_json(body))
    if tail:
        headers["inference-header-content-length"] = str(len(body))
    assert reader.ask(headers, data.draw(chunks_of(body + tail))) == expected


SEGMENTS = st.one_of(
    st.sampled_from(["v2", "models", "m", "versions", "1", "health", "live", "repository", "index", "", *REST_VERBS]),
    st.text("aé%\x80\xad\xff ?~", max_size=4),
    st.lists(
        st.sampled_from(["%61", "%2F", "%2f", "%e9", "%E2%82%AC", "%f0%9f", "%00", "%c2%ad", "%zz", "%", "x"]),
        max_size=4,
    ).map("".join),
)
PATHS = st.one_of(
    st.lists(SEGMENTS, max_size=7).map(lambda segments: "/" + "/".join(segments)),
    st.lists(SEGMENTS, max_size=4).map(lambda segments: "/v2/models/" + "/".join(segments)),
    st.sampled_from(sorted(REST_SERVER)),
    st.sampled_from(sorted(METHODS)).map(lambda method: SERVICE + method),
    st.text(max_size=6).map(lambda text: SERVICE + text.encode("utf-8").decode("latin-1")),
    st.just("/grpc.health.v1.Health/Check"),
)


@fixtures
@given(
    path=PATHS, query=st.sampled_from(["", "?", "?a=/b%2f"]), content=st.sampled_from(["", "application/grpc+proto"])
)
def test_which_call_a_path_is(reader: Reader, path: str, query: str, content: str) -> None:
    headers = {":path": path + query, "content-type": content}
    assert reader.ask(headers, None) == gateway(headers, {})


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if kind.value == "model"])
@pytest.mark.parametrize(
    ("name", "version"), [("m", "3"), ("", "3"), ("é" * 128, ""), ("é" * 129, ""), ("m", "1" * 257)]
)
def test_a_call_about_a_model(reader: Reader, method: str, name: str, version: str) -> None:
    headers = GRPC | {":path": SERVICE + method}
    message = getattr(service_pb2, f"{method}Request")(name=name, version=version).SerializeToString()
    expected = gateway(headers, {"name": [name], "version": [version]})
    assert reader.ask(headers, [framed(message)]) == expected
    assert reader.ask(headers, [bytes([byte]) for byte in framed(message)]) == expected


def test_the_last_of_a_parameter_counts_as_in_a_map(reader: Reader) -> None:
    first, last = (service_pb2.ModelInferRequest(model_name="m") for _ in range(2))
    first.parameters["sequence_id"].int64_param = 1
    last.parameters["sequence_id"].string_param = "b"
    both = first.SerializeToString() + last.SerializeToString()
    merged = service_pb2.ModelInferRequest.FromString(both)
    assert reader.ask(GRPC, [framed(both)]) == gateway(GRPC, fields_of(merged))


def test_the_first_of_a_name_counts_in_json_as_it_does_in_triton(reader: Reader) -> None:
    body = b'{"parameters": {"priority": 2, "priority": 9}, "id": "a", "parameters": {"priority": 7}, "id": "b"}'
    read = reader.ask(REST, [body])
    assert isinstance(read, Understood)
    assert (read.priority, read.triton_id) == (2, b"a")


def test_of_generate_the_prompt_alone_is_read(reader: Reader) -> None:
    # Its parameters are the model's own.
    headers = REST | {":path": "/v2/models/m/generate", "x-priority": "3"}
    read = reader.ask(headers, [b'{"parameters": {"priority": 9, "timeout": 30}}'])
    assert read == gateway(headers, {})
