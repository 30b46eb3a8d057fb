"""What is read of a call: fields arrive as Envoy's grpc_field_extraction gives them, lists of strings by path."""

from __future__ import annotations

import math

import pytest

from balancer.frontends.pick.kserve import Call, HeaderNames, Kind, read_call, sequence_key
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


def test_a_stream_is_told_apart() -> None:
    assert infer(method="ModelStreamInfer").kind is Kind.STREAM


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
    ("timeout", "seconds"), [("5S", 5), ("250m", 0.25), ("1M", 60), ("7u", 7e-6), ("oops", math.inf), ("", math.inf)]
)
def test_grpc_timeout(timeout: str, seconds: float) -> None:
    assert infer({"grpc-timeout": timeout}).request.deadline_s == pytest.approx(seconds)


def test_the_tightest_deadline_counts() -> None:
    request = infer({"grpc-timeout": "2S", "x-deadline-ms": "300"}, keys=["timeout"], ints=["500000"]).request
    assert request.deadline_s == pytest.approx(0.3)


def test_headers_stand_in_for_fields_and_win() -> None:
    headers = {"x-model-name": "n", "x-batch-rows": "16", "x-sequence-id": "s", "x-priority": "1", "x-tenant": "t"}
    request = infer(headers, shape=["2"]).request
    assert (request.model, request.rows, request.priority, request.tenant) == ("n", 16, 1, "t")
    assert request.key == sequence_key("n", "s")


def test_a_routing_key_is_no_sequence() -> None:
    request = infer({"x-routing-key": "user-1"}).request
    assert (request.key, request.sequence) == (key_of("user-1"), False)


@pytest.mark.parametrize("nonsense", ["many", "nan", "inf", ""])
def test_an_unreadable_number_counts_as_absent(nonsense: str) -> None:
    assert infer({"x-batch-rows": nonsense}, shape=["4"]).request.rows == 4


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
    ],
)
def test_grpc_methods_about_servers(method: str, kind: Kind) -> None:
    path = {":path": f"/inference.GRPCInferenceService/{method}"}
    assert read_call(GRPC | path, {}, HeaderNames()).kind is kind


def test_grpc_methods_about_a_model() -> None:
    path = {":path": "/inference.GRPCInferenceService/ModelConfig"}
    call = read_call(GRPC | path, {"name": ["m"], "version": ["2"]}, HeaderNames())
    assert (call.kind, call.request.model, call.request.version) == (Kind.MODEL, "m", "2")
