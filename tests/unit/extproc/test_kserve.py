"""What is read of a call: fields arrive as Envoy's grpc_field_extraction gives them, lists of strings by path."""

import math

import pytest

from balancer.bounds import OutOfBoundsError
from balancer.extproc.kserve import Call, HeaderNames, Kind, read_call, sequence_key
from policies.hashing import key_of

GRPC = {"content-type": "application/grpc", "x-request-id": "envoys"}
EMPTY: dict[str, list[str]] = {
    "model_name": ["m"],
    "model_version": [],
    "id": [],
    "inputs.shape": [],
    "parameters.key": [],
    "parameters.value.bool_param": [],
    "parameters.value.int64_param": [],
    "parameters.value.uint64_param": [],
    "parameters.value.string_param": [],
}


def infer(headers: dict[str, str] | None = None, method: str = "ModelInfer", **fields: list[str]) -> Call:
    names = {
        "keys": "parameters.key",
        "bools": "parameters.value.bool_param",
        "ints": "parameters.value.int64_param",
        "uints": "parameters.value.uint64_param",
        "strings": "parameters.value.string_param",
        "shape": "inputs.shape",
    }
    path = {":path": f"/inference.GRPCInferenceService/{method}"}
    given = {names.get(name, name): values for name, values in fields.items()}
    return read_call(GRPC | path | (headers or {}), EMPTY | given, HeaderNames())


def rest(path: str, headers: dict[str, str] | None = None) -> Call:
    return read_call({":path": path, "x-request-id": "envoys"} | (headers or {}), {}, HeaderNames())


def test_a_grpc_inference() -> None:
    call = infer(model_version=["3"], id=["mine"], shape=["8", "3", "224"])
    assert (call.kind, call.grpc, call.request_id, call.triton_request_id) == (Kind.INFERENCE, True, "envoys", "mine")
    assert (call.request.model, call.request.version, call.request.rows) == ("m", "3", 8)
    assert call.request.key is None
    assert math.isinf(float(call.request.deadline_s))


@pytest.mark.parametrize(
    ("fields", "sequence_id"),
    [
        ({"keys": ["sequence_id", "sequence_start", "sequence_end"], "bools": ["1", "0"], "ints": ["42"]}, "42"),
        ({"keys": ["sequence_id", "sequence_start"], "bools": ["1"], "strings": ["abc"]}, "abc"),
        # Triton's timeout is an integer too.
        ({"keys": ["timeout", "sequence_id"], "ints": ["500000", "7"]}, "7"),
        ({"keys": ["sequence_id", "timeout"], "ints": ["7", "500000"]}, "7"),
        ({"keys": ["timeout", "sequence_id"], "ints": ["500000"], "strings": ["abc"]}, "abc"),
    ],
)
def test_a_sequence_is_placed_by_its_id(fields: dict[str, list[str]], sequence_id: str) -> None:
    request = infer(**fields).request
    assert request.sequence
    assert request.key == sequence_key("m", sequence_id)


@pytest.mark.parametrize("zero", [{"ints": ["0"]}, {"strings": [""]}])
def test_sequence_id_zero_is_no_sequence(zero: dict[str, list[str]]) -> None:
    assert not infer(keys=["sequence_id"], **zero).request.sequence


def test_priority_and_timeout_of_triton() -> None:
    request = infer(keys=["priority", "timeout"], uints=["2"], ints=["250000"]).request
    assert request.priority == 2
    assert request.deadline_s == pytest.approx(0.25)


def test_a_custom_key_of_another_kind_confuses_nothing() -> None:
    request = infer(keys=["colour", "priority"], strings=["red"], uints=["2"]).request
    assert request.priority == 2


def test_an_ambiguous_list_is_not_guessed_at() -> None:
    # Two integers, one of which belongs to a key of unknown kind: which is the timeout cannot be told.
    assert math.isinf(float(infer(keys=["mine", "timeout"], ints=["1", "250000"]).request.deadline_s))


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("5S", 5), ("250m", 0.25), ("1M", 60), ("7u", 7e-6), ("99999999H", 3.6e11), ("", math.inf)]
)
def test_grpc_timeout(timeout: str, seconds: float) -> None:
    assert infer({"grpc-timeout": timeout}).request.deadline_s == pytest.approx(seconds)


def test_the_tightest_deadline_counts() -> None:
    request = infer({"grpc-timeout": "2S", "x-deadline-ms": "300"}, keys=["timeout"], ints=["500000"]).request
    assert request.deadline_s == pytest.approx(0.3)


def test_headers_stand_in_for_fields() -> None:
    headers = {"x-batch-rows": "16", "x-sequence-id": "s", "x-priority": "1", "x-tenant": "t"}
    request = infer(headers, shape=["2"]).request
    assert (request.model, request.rows, request.priority, request.tenant) == ("m", 16, 1, "t")
    assert request.key == sequence_key("m", "s")


def test_a_header_does_not_widen_what_the_message_says() -> None:
    headers = {"x-sequence-id": "another", "x-priority": "1", "x-deadline-ms": "9000"}
    request = infer(headers, keys=["sequence_id", "priority", "timeout"], ints=["7", "500000"], uints=["3"]).request
    assert request.key == sequence_key("m", "7")
    assert request.priority == 3
    assert request.deadline_s == pytest.approx(0.5)


def test_a_header_names_the_model_only_where_the_operator_says_so_and_nothing_else_does() -> None:
    names = HeaderNames(model="x-model-name")
    header = {"x-model-name": "n", ":path": "/inference.GRPCInferenceService/ModelInfer"}
    assert read_call(GRPC | header, {}, names).request.model == "n"
    assert read_call(GRPC | header, EMPTY, names).request.model == "m"
    assert read_call({"x-model-name": "n", ":path": "/v2/models/m/infer"}, {}, names).request.model == "m"
    with pytest.raises(OutOfBoundsError, match="model: '' is refused"):
        read_call(GRPC | header, {}, HeaderNames())


def test_headers_that_the_operator_does_not_name_are_not_read() -> None:
    headers = {"x-batch-rows": "1e308", "x-sequence-id": "s", "x-routing-key": "k", "x-priority": "x"}
    none = HeaderNames(None, None, None, None, None, None, None)
    request = read_call({":path": "/v2/models/m/infer"} | headers, {}, none).request
    assert (request.rows, request.key, request.priority) == (1, None, 0)


def test_a_routing_key_is_no_sequence() -> None:
    request = infer({"x-routing-key": "user-1"}).request
    assert (request.key, request.sequence) == (key_of("user-1"), False)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"x-batch-rows": "1e308"}, "x-batch-rows: '1e308' is refused; it is a whole number from 1 to 65536"),
        ({"x-batch-rows": "-1000000"}, "x-batch-rows: '-1000000' is refused"),
        ({"x-batch-rows": "0"}, "x-batch-rows: '0' is refused"),
        ({"x-batch-rows": "65537"}, "x-batch-rows: '65537' is refused"),
        ({"x-batch-rows": "nan"}, "x-batch-rows: 'nan' is refused"),
        ({"x-batch-rows": "9" * 5000}, "x-batch-rows: .*5000 characters"),
        ({"x-batch-rows": "\u00b2"}, "x-batch-rows"),
        ({"x-batch-rows": "\u0663"}, "x-batch-rows"),
        ({"x-priority": "-1"}, "x-priority"),
        ({"x-priority": "32768"}, "x-priority"),
        ({"x-deadline-ms": "inf"}, "x-deadline-ms"),
        ({"x-deadline-ms": "0"}, "x-deadline-ms"),
        ({"x-deadline-ms": "1e3"}, "x-deadline-ms"),
        ({"grpc-timeout": "9" * 5000 + "S"}, "grpc-timeout: .*; it has 1 to 8 digits"),
        ({"grpc-timeout": "\u00b2S"}, "grpc-timeout"),
        ({"grpc-timeout": "5"}, "grpc-timeout"),
        ({"x-routing-key": "k" * 257}, "x-routing-key: .*257 characters.* it has 256 bytes at most"),
        ({"x-sequence-id": "s" * 257}, "x-sequence-id"),
        ({"x-tenant": "t" * 257}, "x-tenant"),
        ({"x-request-id": "r" * 257}, "x-request-id"),
    ],
)
def test_a_header_out_of_bounds_is_refused_by_its_name(headers: dict[str, str], message: str) -> None:
    with pytest.raises(OutOfBoundsError, match=message):
        infer(headers)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model_name": ["m" * 257]}, "model"),
        ({"model_name": ["\u00e9" * 129]}, "model"),
        ({"model_version": ["1" * 257]}, "version"),
        ({"id": ["i" * 257]}, "id"),
        ({"keys": ["sequence_id"], "strings": ["s" * 257]}, "sequence_id"),
        ({"keys": ["priority"], "uints": ["32768"]}, "priority"),
        ({"keys": ["k"] * 257}, "parameters"),
    ],
)
def test_a_field_out_of_bounds_is_refused_by_its_name(fields: dict[str, list[str]], field: str) -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        infer(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("shape", ["16000000", "-5", "0", "nonsense", "9" * 5000])
def test_a_first_dimension_that_is_no_batch_says_nothing(shape: str) -> None:
    assert infer(shape=[shape]).request.rows == 1


def test_what_is_within_bounds_passes_to_the_byte() -> None:
    assert infer(model_name=["m" * 256], shape=["65536"]).request.rows == 65536
    assert infer({"x-batch-rows": "65536", "x-priority": "32767"}).request.priority == 32767


@pytest.mark.parametrize(
    ("path", "kind", "model", "version"),
    [
        ("/v2/models/m/infer", Kind.INFERENCE, "m", ""),
        ("/v2/models/m/versions/2/infer?x=1", Kind.INFERENCE, "m", "2"),
        ("/v2/models/my%20model/infer", Kind.INFERENCE, "my model", ""),
        ("/v2/models/m/generate_stream", Kind.STREAM, "m", ""),
        ("/v2/models/m/config", Kind.MODEL, "m", ""),
        ("/v2/models/m/versions/1/ready", Kind.MODEL, "m", "1"),
        ("/v2/models/m", Kind.MODEL, "m", ""),
        ("/v2/models/stats", Kind.SERVER, "", ""),
        ("/v2/health/ready", Kind.SERVER, "", ""),
        ("/v2", Kind.SERVER, "", ""),
        ("/v2/repository/index", Kind.SERVER, "", ""),
        ("/v2/repository/models/m/load", Kind.PER_SERVER, "", ""),
        ("/v2/systemsharedmemory/region/r/register", Kind.PER_SERVER, "", ""),
        ("/v2/logging", Kind.PER_SERVER, "", ""),
        ("/v2/%6cogging", Kind.PER_SERVER, "", ""),
        ("/v2//logging", Kind.PER_SERVER, "", ""),
        ("/v2/models/m/../../logging", Kind.PER_SERVER, "", ""),
        ("/v2/models/m%2ftrace/setting", Kind.PER_SERVER, "", ""),
        ("/v2/models/m/trace/setting", Kind.PER_SERVER, "", ""),
        ("/v2/models/m/versions/1/trace/setting/", Kind.PER_SERVER, "", ""),
        ("/v2/models/m%00/infer", Kind.PER_SERVER, "", ""),
        ("/metrics", Kind.PER_SERVER, "", ""),
    ],
)
def test_rest_paths(path: str, kind: Kind, model: str, version: str) -> None:
    call = rest(path)
    assert (call.kind, call.request.model, call.request.version, call.grpc) == (kind, model, version, False)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("ServerReady", Kind.SERVER),
        ("RepositoryIndex", Kind.SERVER),
        ("RepositoryModelLoad", Kind.PER_SERVER),
        ("SystemSharedMemoryRegister", Kind.PER_SERVER),
        ("CudaSharedMemoryStatus", Kind.PER_SERVER),
        ("LogSettings", Kind.PER_SERVER),
        ("SomethingNew", Kind.PER_SERVER),
    ],
)
def test_grpc_methods_about_servers(method: str, kind: Kind) -> None:
    path = {":path": f"/inference.GRPCInferenceService/{method}"}
    assert read_call(GRPC | path, {}, HeaderNames()).kind is kind
