"""Triton's own clients, unmodified, through Envoy and the balancer to real Tritons."""

import queue

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
from support.inputs import input_of
from support.load import steady_load
from support.stack import Stack, records
from support.waiting import PATIENCE_S, eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.digits import held_out

pytestmark = pytest.mark.integration


def test_grpc_digits_are_right_through_the_whole_stack(stack: Stack) -> None:
    digits = held_out()
    right = 0
    with grpc_client.InferenceServerClient(stack.url) as client:
        for start in range(0, len(digits.labels), 20):
            images = digits.images[start : start + 20]
            result = client.infer("digits", [input_of(grpc_client, "IMAGE", images)])
            assert result.as_numpy("PROBABILITIES").shape == (len(images), 10)
            right += int((result.as_numpy("LABEL").ravel() == digits.labels[start : start + 20]).sum())
    assert right / len(digits.labels) > 0.95


@pytest.mark.parametrize("binary", [True, False])
def test_http(stack: Stack, binary: bool) -> None:
    digits = held_out()
    value = input_of(http_client, "IMAGE", digits.images[:10], binary_data=binary)
    client = http_client.InferenceServerClient(stack.url)
    labels = client.infer("digits", [value]).as_numpy("LABEL").ravel()
    assert (labels == digits.labels[:10]).mean() > 0.7
    client.close()


def test_a_stream_of_a_decoupled_model_is_served_by_one_worker(stack: Stack) -> None:
    answers: queue.Queue[tuple[object, object]] = queue.Queue()
    with grpc_client.InferenceServerClient(stack.url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("decoupled_count", [input_of(grpc_client, "COUNT", np.array([5], np.int32))])
        received = [answers.get(timeout=PATIENCE_S) for _ in range(15)]
        client.stop_stream()
    assert not any(error for _, error in received)
    indices = [int(result.as_numpy("INDEX")[0]) for result, _ in received]  # type: ignore[attr-defined]  # untyped client
    # Answers of the three requests may interleave.
    assert sorted(indices) == sorted([0, 1, 2, 3, 4] * 3)
    workers = {result.as_numpy("WORKER")[0] for result, _ in received}  # type: ignore[attr-defined]  # untyped client
    assert len(workers) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_interleaved_sequences_each_stay_on_one_worker_by_whatever_id(stack: Stack) -> None:
    steps = 8
    totals: dict[int, list[int]] = {}
    workers: dict[int, set[bytes]] = {}
    async with grpc_aio.InferenceServerClient(stack.url) as client:
        for step in range(steps):
            for sequence in range(1, 11):
                result = await client.infer(
                    "sequence_sum",
                    [input_of(grpc_aio, "VALUE", np.array([[sequence]], np.int64))],
                    sequence_id=sequence if sequence < 10 else "a-customer",
                    sequence_start=step == 0,
                    sequence_end=step == steps - 1,
                )
                totals.setdefault(sequence, []).append(int(result.as_numpy("SUM")[0, 0]))
                workers.setdefault(sequence, set()).add(result.as_numpy("WORKER").ravel()[0])
    assert totals == {sequence: [sequence * (step + 1) for step in range(steps)] for sequence in range(1, 11)}
    assert all(len(names) == 1 for names in workers.values())
    assert len(set.union(*workers.values())) > 1


@pytest.mark.parametrize("module", [grpc_client, http_client])
def test_a_tensor_of_64_mib_passes_and_comes_back(stack: Stack, module: object) -> None:
    large = np.arange(16 * 1024 * 1024, dtype=np.float32)
    client = module.InferenceServerClient(stack.url)  # type: ignore[attr-defined]  # either of tritonclient's modules
    result = client.infer("identity", [input_of(module, "INPUT", large)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), large)
    client.close()


def test_an_unknown_model_and_version_are_not_found_as_triton_says_it(stack: Stack) -> None:
    image = input_of(grpc_client, "IMAGE", held_out().images[:1])
    with grpc_client.InferenceServerClient(stack.url) as client:
        for version, text in (("", "'nope' is not found"), ("9", "'nope' version 9 is not found")):
            with pytest.raises(InferenceServerException, match=text) as caught:
                client.infer("nope", [image], model_version=version)
            assert caught.value.status() == "StatusCode.NOT_FOUND"
    http = http_client.InferenceServerClient(stack.url)
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nope' is not found"):
        http.infer("nope", [input_of(http_client, "IMAGE", held_out().images[:1])])
    http.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_envoy_and_balancer_log_a_request_with_the_same_ids(stack: Stack) -> None:
    image = input_of(grpc_aio, "IMAGE", held_out().images[:1])
    ids = {"request_id": "of-the-client", "triton_request_id": "of-the-message"}
    async with grpc_aio.InferenceServerClient(stack.url) as client:
        headers = {"x-request-id": ids["request_id"]}
        await client.infer("digits", [image], request_id=ids["triton_request_id"], headers=headers)

    def logged(name: str) -> list[dict[str, object]]:
        path = stack.directory / name
        return [line for line in records(path) if line.get("request_id") == ids["request_id"]] if path.exists() else []

    [decision] = await eventually(lambda: logged("balancer.log"), "the decision in the balancer's log")
    [access] = await eventually(lambda: logged("envoy-access.log"), "the request in Envoy's log")
    assert {key: decision[key] for key in ids} == ids
    assert access["request_id"] == ids["request_id"]
    assert (decision["model"], decision["policy"]) == ("digits", "round_robin")
    picked = next(spec for spec in stack.specs if spec.name == decision["worker"])
    if stack.config.envoy.frontend == "proxy":
        # Envoy knows no more than which process forwards.
        assert access["served"] == stack.config.listen.envoy_addresses(0)[-1]
    else:
        assert access["served"] == picked.grpc_endpoint
        assert access["triton_request_id"] == ids["triton_request_id"]


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_in_flight_is_counted_and_every_outcome_finds_its_pick(stack: Stack) -> None:
    async def in_flight() -> float:
        page = await stack.get("/workers")
        return float(sum(worker["in_flight"] for worker in page["workers"]))

    async def busy() -> bool:
        return await in_flight() >= 4

    async def idle() -> bool:
        return await in_flight() == 0

    await eventually(idle, "nothing in flight before")
    before = await outcomes(stack)
    async with steady_load(stack.url, "emulated_bert_large", clients=6) as load:
        await eventually(busy, "requests in flight")
    assert not load.failures()
    assert load.result is not None
    await eventually(idle, "nothing in flight once all has been answered")
    after = await outcomes(stack)
    assert after["unmatched"] == before["unmatched"]
    assert after["matched"] - before["matched"] >= len(load.result)


async def outcomes(stack: Stack) -> dict[str, float]:
    return {name: await stack.metric("balancer_outcomes_total", result=name) for name in ("matched", "unmatched")}


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_what_is_compressed_is_served_as_by_one_triton(stack: Stack, algorithm: str) -> None:
    digits = held_out()
    images, labels = digits.images[:20], digits.labels[:20]
    with grpc_client.InferenceServerClient(stack.url) as client:
        value = input_of(grpc_client, "IMAGE", images)
        result = client.infer("digits", [value], compression_algorithm=algorithm)
        assert (result.as_numpy("LABEL").ravel() == labels).mean() > 0.7
        answers: queue.Queue[tuple[object, object]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=algorithm)
        for _ in range(3):
            client.async_stream_infer("digits", [value])
        received = [answers.get(timeout=PATIENCE_S) for _ in range(3)]
        client.stop_stream()
        assert [error for _, error in received] == [None] * 3
    http = http_client.InferenceServerClient(stack.url)
    for binary in (True, False):
        body = input_of(http_client, "IMAGE", images, binary_data=binary)
        result = http.infer(
            "digits", [body], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
        )
        assert (result.as_numpy("LABEL").ravel() == labels).mean() > 0.7
    http.close()


def test_a_compressed_sequence_stays_on_one_worker(stack: Stack) -> None:
    with grpc_client.InferenceServerClient(stack.url) as client:
        workers = set()
        for step in range(6):
            # A name that gRPC finds worth to compress.
            result = client.infer(
                "sequence_sum",
                [input_of(grpc_client, "VALUE", np.array([[step]], np.int64))],
                sequence_id=4242,
                sequence_start=step == 0,
                sequence_end=step == 5,
                request_id="a" * 200,
                compression_algorithm="gzip",
            )
            workers.add(bytes(result.as_numpy("WORKER").ravel()[0]))
        assert result.as_numpy("SUM").ravel().tolist() == [15]
    assert len(workers) == 1


def test_what_inflates_to_too_much_is_refused_in_words_and_others_are_served(stack: Stack) -> None:
    bomb = input_of(grpc_client, "IMAGE", np.zeros((350_000, 64), np.float32))
    image = input_of(grpc_client, "IMAGE", held_out().images[:1])
    with grpc_client.InferenceServerClient(stack.url) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer("digits", [bomb], compression_algorithm="gzip")
        assert "bytes inflated, which is refused" in str(raised.value) or "larger than max" in str(raised.value)
        assert client.infer("digits", [image]).as_numpy("LABEL").shape == (1, 1)
