"""What Triton can do beside plain tensors, each through its own client: the expectations that a proxy must keep."""

import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def grpc_input(name: str, values: np.ndarray, datatype: str) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput(name, values.shape, datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def test_a_decoupled_model_streams_its_responses(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    responses: queue.Queue[tuple[tritonclient.grpc.InferResult | None, InferenceServerException | None]] = queue.Queue()
    grpc_client.start_stream(lambda result, error: responses.put((result, error)))
    grpc_client.async_stream_infer("decoupled_count", [grpc_input("COUNT", np.array([5], np.int32), "INT32")])
    results = [responses.get(timeout=30) for _ in range(5)]
    grpc_client.stop_stream()
    assert [error for _, error in results] == [None] * 5
    assert [result.as_numpy("INDEX")[0] for result, _ in results if result] == [0, 1, 2, 3, 4]
    assert {result.as_numpy("WORKER")[0] for result, _ in results if result} == {b"worker-under-test"}


def test_strings(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    texts = np.array([["grüße"], [""]], dtype=np.object_)
    upper = grpc_client.infer("string_upper", [grpc_input("TEXT", texts, "BYTES")]).as_numpy("UPPER")
    assert [text.decode() for text in upper[:, 0]] == ["GRÜSSE", ""]


def test_strings_over_http(http_client: tritonclient.http.InferenceServerClient) -> None:
    tensor = tritonclient.http.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([["text"]], dtype=np.object_), binary_data=False)
    assert http_client.infer("string_upper", [tensor]).as_numpy("UPPER").tolist() == [[b"TEXT"]]


def test_several_outputs(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    a, b = np.array([[5, 6, 7, 8]], np.int32), np.array([[1, 2, 3, 4]], np.int32)
    result = grpc_client.infer("several_outputs", [grpc_input("A", a, "INT32"), grpc_input("B", b, "INT32")])
    assert result.as_numpy("SUM").tolist() == [[6, 8, 10, 12]]
    assert result.as_numpy("DIFFERENCE").tolist() == [[4, 4, 4, 4]]
    assert result.as_numpy("MEAN").tolist() == [[4.5]]


@pytest.mark.parametrize("ids", [range(1, 11), [f"sequence-{number}" for number in range(10)]], ids=["int", "str"])
def test_ten_interleaved_sequences(grpc_client: tritonclient.grpc.InferenceServerClient, ids: list[int | str]) -> None:
    for step in range(4):
        for number, sequence in enumerate(ids):
            result = grpc_client.infer(
                "sequence_sum",
                [grpc_input("VALUE", np.array([[number + step]], np.int64), "INT64")],
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            assert result.as_numpy("SUM")[0, 0] == sum(number + earlier for earlier in range(step + 1))


def test_a_tensor_of_64_mib(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    values = np.arange(64 * 2**20 // 4, dtype=np.float32)
    result = grpc_client.infer("identity", [grpc_input("INPUT", values, "FP32")])
    assert (result.as_numpy("OUTPUT") == values).all()
    assert result.as_numpy("WORKER").tolist() == [b"worker-under-test"]
