"""What Triton answers where it refuses: the balancer answers alike, and retries only what was not executed."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession
from tritonclient.grpc import service_pb2 as api
from tritonclient.grpc import service_pb2_grpc

from balancer.stack.tritonserver import TritonServer


def infer_request(
    model: str, rows: int = 1, version: str = "", parameters: dict[str, int | str] | None = None
) -> api.ModelInferRequest:
    name, datatype, kind = ("VALUE", "INT64", np.int64) if model == "sequence_sum" else ("INPUT", "FP32", np.float32)
    values = np.zeros((rows, 1), kind)
    request = api.ModelInferRequest(model_name=model, model_version=version, raw_input_contents=[values.tobytes()])
    request.inputs.add(name=name, datatype=datatype, shape=values.shape)
    for key, value in (parameters or {}).items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].int64_param = value
    return request


def refusal(stub: service_pb2_grpc.GRPCInferenceServiceStub, request: api.ModelInferRequest) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request)
    return raised.value.code().name, raised.value.details()


@pytest.fixture
def stub(triton: TritonServer) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(triton.grpc_endpoint))


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (infer_request("nope"), "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        (
            infer_request("emulated_tft", version="7"),
            "NOT_FOUND",
            "Request for unknown model: 'emulated_tft' version 7 is not found",
        ),
        (
            infer_request("sequence_sum", parameters={"sequence_id": 5}),
            "INVALID_ARGUMENT",
            "inference request for sequence 5 to model 'sequence_sum' must specify the START flag on the first request "
            "of the sequence",
        ),
        (
            infer_request("sequence_sum"),
            "INVALID_ARGUMENT",
            "inference request to model 'sequence_sum' must specify a non-zero or non-empty correlation ID",
        ),
    ],
)
def test_refusals_over_grpc(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, request_: api.ModelInferRequest, code: str, text: str
) -> None:
    assert refusal(stub, request_) == (code, text)


def test_a_stream_says_it_in_its_response(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    (response,) = stub.ModelStreamInfer(iter([infer_request("nope")]))
    assert response.error_message == "Request for unknown model: 'nope' is not found"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nope", "Request for unknown model: 'nope' is not found"),
        ("emulated_tft/versions/7", "Request for unknown model: 'emulated_tft' version 7 is not found"),
    ],
)
async def test_refusals_over_http(triton: TritonServer, path: str, text: str) -> None:
    body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]}
    async with (
        ClientSession() as session,
        session.post(f"http://{triton.http_endpoint}/v2/models/{path}/infer", json=body) as response,
    ):
        assert (response.status, await response.json(content_type=None)) == (404, {"error": text})


def test_a_full_queue_is_unavailable(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """One executes, four wait; of 12 at once, some must be turned away, and where they are not at once, of the next."""

    def code(_: int) -> tuple[str, str]:
        try:
            stub.ModelInfer(infer_request("emulated_queue_policy", rows=16))
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    with ThreadPoolExecutor(12) as pool:
        rounds = (set(pool.map(code, range(12))) for _ in range(20))
        codes = next(codes for codes in rounds if len(codes) > 1)
    assert codes == {("OK", ""), ("UNAVAILABLE", "[request id: <id_unknown>] Exceeds maximum queue size")}


def test_a_queue_timeout_is_unavailable(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """Two execute one after the other, each 218 ms; a third that may wait for 1 ms comes too late while they do.

    Triton may take up the third before the other two, or after them: that says nothing, and is tried again.
    """

    def answer_to_the_third() -> tuple[str, str]:
        before = [stub.ModelInfer.future(infer_request("emulated_queue_policy", rows=16)) for _ in range(2)]
        try:
            stub.ModelInfer(infer_request("emulated_queue_policy", parameters={"timeout": 1000}))
        except grpc.RpcError as error:
            return error.code().name, error.details()
        finally:
            for call in before:
                call.result()
        return "OK", ""

    answers = (answer_to_the_third() for _ in range(20))
    refusal = next((answer for answer in answers if answer[0] != "OK"), None)
    assert refusal == ("UNAVAILABLE", "Request timeout expired")
