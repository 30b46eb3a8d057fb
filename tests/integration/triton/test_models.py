"""The models that the project serves: digits, and the emulated GPUs."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
from support.inputs import input_of
from support.waiting import eventually

from balancer.stack.digits import load_split
from balancer.stack.tritonserver import TritonServer

# Measured on a T4, as triton/emulation/latency.csv has it.
BERT_LARGE_16_ROWS_S = 0.2181
BERT_DISTILLED_16_ROWS_S = 0.0342

MakeTriton = Callable[..., TritonServer]


def batch_times(client: tritonclient.grpc.InferenceServerClient, model: str) -> dict[int, tuple[int, float]]:
    """Executions so far by batch size, and the seconds that they took together."""
    (stats,) = client.get_inference_statistics(model).model_stats
    return {batch.batch_size: (batch.compute_infer.count, batch.compute_infer.ns / 1e9) for batch in stats.batch_stats}


def infer_emulated(
    client: tritonclient.grpc.InferenceServerClient, model: str, values: np.ndarray
) -> tritonclient.grpc.InferResult:
    tensor = input_of(tritonclient.grpc, "INPUT", values)
    return client.infer(model, [tensor])


def test_digits_held_out_images_are_always_the_same_and_not_trained_on() -> None:
    (train, first), (_, second) = load_split(), load_split()
    assert (first.images == second.images).all()
    assert len(first.labels) == 540
    assert len(train.labels) + len(first.labels) == 1797


@pytest.mark.parametrize("model", ["emulated_tft", "emulated_bert_distilled", "emulated_bert_large"])
def test_emulated_models_answer_what_can_be_checked(
    grpc_client: tritonclient.grpc.InferenceServerClient, model: str
) -> None:
    values = np.random.default_rng(1).random((3, 16), dtype=np.float32)
    result = infer_emulated(grpc_client, model, values)
    assert result.as_numpy("CHECKSUM") == pytest.approx(values.sum(axis=1, keepdims=True))
    assert result.as_numpy("WORKER").tolist() == [[b"worker-under-test"]] * 3


def test_emulated_models_take_tensors_of_any_size(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    result = infer_emulated(grpc_client, "emulated_tft", np.ones((1, 262_144), dtype=np.float32))
    assert result.as_numpy("CHECKSUM").tolist() == [[262_144.0]]


async def test_a_batch_occupies_the_gpu_for_the_measured_time(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    infer_emulated(grpc_client, "emulated_bert_large", np.zeros((16, 4), dtype=np.float32))
    # Triton answers before it counts.
    await eventually(lambda: 16 in batch_times(grpc_client, "emulated_bert_large"))
    count, seconds = batch_times(grpc_client, "emulated_bert_large")[16]
    assert seconds >= count * BERT_LARGE_16_ROWS_S


def test_the_models_of_a_worker_share_one_gpu(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    """Both at once take at least as long as one after the other."""
    values = np.zeros((16, 4), dtype=np.float32)
    together = threading.Barrier(2)

    def infer(model: str) -> None:
        together.wait()
        infer_emulated(grpc_client, model, values)

    with ThreadPoolExecutor(2) as pool:
        started_s = time.monotonic()
        for done in [pool.submit(infer, model) for model in ("emulated_bert_large", "emulated_bert_distilled")]:
            done.result()
        assert time.monotonic() - started_s >= BERT_LARGE_16_ROWS_S + BERT_DISTILLED_16_ROWS_S


def test_triton_batches_what_waits_together(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    row = np.zeros((1, 4), dtype=np.float32)
    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(infer_emulated, grpc_client, "emulated_bert_distilled", row) for _ in range(48)]:
            done.result()
    assert max(batch_times(grpc_client, "emulated_bert_distilled")) > 1


async def test_a_key_that_the_emulated_gpu_remembers_takes_no_time_again(make_triton: MakeTriton) -> None:
    scale, rows = 4, 16
    cold_s = scale * BERT_LARGE_16_ROWS_S
    cache = {"EMULATED_GPU_CACHE_KEYS": "64", "EMULATED_GPU_CACHE_SAVING": "1"}
    server = make_triton(
        "emulated_bert_large", environment={"EMULATED_GPU": "T4", "EMULATED_GPU_TIME_SCALE": str(scale), **cache}
    )
    await server.start()
    await server.wait_ready()
    with tritonclient.grpc.InferenceServerClient(server.grpc_endpoint) as client:

        async def is_warm(key: str) -> bool:
            """By Triton's own count of one execution's time, which is nothing or nearly a second."""
            count, seconds = batch_times(client, "emulated_bert_large").get(rows, (0, 0.0))
            tensor = input_of(tritonclient.grpc, "INPUT", np.ones((rows, 1), np.float32))
            client.infer("emulated_bert_large", [tensor], headers={"x-routing-key": key} if key else None)
            # Triton answers before it counts.
            await eventually(lambda: batch_times(client, "emulated_bert_large").get(rows, (0, 0.0))[0] > count)
            return batch_times(client, "emulated_bert_large")[rows][1] - seconds < cold_s / 2

        assert [await is_warm(key) for key in ("a", "a", "b", "a", "b", "", "")] == [
            False,
            True,
            False,
            True,
            True,
            False,
            False,
        ]
