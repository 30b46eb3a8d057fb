"""What a stranger wants who may send requests: Triton's clients and any header, through a real Envoy."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import pytest_asyncio
from support.guarded_listener import overlay
from support.raw_http2 import Unread, grpc_head
from support.running import running
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.stack.stack import read_samples, sum_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HONEST_MODEL = "emulated_tft"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_SHAPE = (1, 4)


def inference(model: str = HONEST_MODEL, **fields: Any) -> service_pb2.ModelInferRequest:
    """A request that emulated models answer."""
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    request.inputs.add(name="INPUT", datatype="FP32", shape=_SHAPE)
    request.raw_input_contents.append(np.ones(_SHAPE, np.float32).tobytes())
    return request


@dataclass(frozen=True)
class Answer:
    """Of either protocol."""

    code: str
    """Name of the gRPC status, or the HTTP status."""
    text: str


class Attacker:
    """Speaks to one listener."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    async def grpc(
        self, method: str, request: Any, headers: Sequence[tuple[str, str | bytes]] = (), timeout_s: float | None = None
    ) -> Answer:
        """Call a method of Triton's service; `request`: a message, or its bytes."""
        async with grpc.aio.insecure_channel(self.stack.url, options=_UNLIMITED) as channel:
            if isinstance(request, bytes):
                call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            else:
                call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
            try:
                answer = await call(request, metadata=list(headers), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                return Answer(error.code().name, error.details() or "")
            return Answer("OK", str(answer))

    async def unreadable(self, headers: Sequence[tuple[str, str | bytes]] = ()) -> Answer:
        """An inference whose message Envoy cannot read, since its model is no text: it ends there, before any pick."""
        return await self.grpc("ModelInfer", b"\x0a\x02\xff\xff", headers)

    async def rest(
        self, path: str, headers: Mapping[str, str] | None = None, body: Any = None, method: str = "POST"
    ) -> Answer:
        """Send an HTTP request; the path goes out as it is."""
        async with aiohttp.ClientSession() as session:
            url = f"http://{self.stack.url}{path}"
            async with session.request(method, url, headers=headers, json=body) as response:
                return Answer(str(response.status), await response.text())

    async def rest_inference(self, model: str = HONEST_MODEL, headers: Mapping[str, str] | None = None) -> Answer:
        """An inference by REST."""
        data = {"name": "INPUT", "shape": list(_SHAPE), "datatype": "FP32", "data": [1.0] * math.prod(_SHAPE)}
        return await self.rest(f"/v2/models/{model}/infer", headers, {"inputs": [data]})

    async def stopped_upload(self, headers: Mapping[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An inference by REST whose body never comes, on a connection of its own."""
        host, _, port = self.stack.url.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"POST /v2/models/{HONEST_MODEL}/infer HTTP/1.1", "Host: gateway", "Content-Length: 1000"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return reader, writer


async def honest_requests_are_served_by_policy(stack: Stack, requests: int = 20) -> None:
    """The process is the one that was started, its estimators are sound, and it has picked for every request since."""
    assert stack.balancer.process.returncode is None
    await nothing_is_left_over(stack)
    picked = await decisions(stack)
    attacker = Attacker(stack)
    answers = await asyncio.gather(
        *(attacker.grpc("ModelInfer", inference(), timeout_s=PATIENCE_S) for _ in range(requests))
    )
    assert {(answer.code, answer.text) for answer in answers if answer.code != "OK"} == set()
    await nothing_is_left_over(stack)
    await eventually(
        lambda: decisions(stack),
        "a policy has decided about each, and about nothing else",
        until=lambda found: found == picked + requests,
    )
    # One text for both: another is made a second later at the earliest.
    samples = await read_samples(stack.admin())
    assert sum_of(samples, "balancer_handler_errors_total") == 0
    assert sum_of(samples, "balancer_fallbacks_total", cause="no_pick") == stack.unpicked


async def decisions(stack: Stack) -> float:
    """How many picks policies have made."""
    return float(sum((await stack.get("/recent"))["decisions"].values()))


async def nothing_is_left_over(stack: Stack) -> None:
    """All that was picked has ended, and what is known of the workers is finite."""
    await eventually(
        lambda: stack.get("/workers"),
        "no request counts in flight",
        until=lambda page: all(worker["in_flight"] == 0 for worker in page["workers"]),
    )
    for worker in (await stack.get("/workers"))["workers"]:
        for name in ("pending", "backlog_s", "latency_s", "error_rate", "tokens", "report_age_s"):
            assert worker[name] is not None, f"{name} of {worker['worker']} is not finite"
            assert worker[name] >= 0, f"{name} of {worker['worker']} is {worker[name]}"


SETTINGS = {
    "log": {"decisions_share": 1.0},
    "models": {"emulated_tft": {"versions": [1]}, "digits": {"devices": ["H100"]}},
    "limits": {"max_pending_per_worker": 16},
}
"""`digits` may run nowhere here, so whoever is answered has passed by the table."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["pick", "native", "proxy"])
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """One for all attacks, which it is to survive; the state that they leave behind is part of what is tested."""
    directory = tmp_path_factory.mktemp("attacked")
    # An honest pick may take its time on a busy machine; a loop that is blocked for longer is what an attacker wants.
    listener = "asking" if request.param == "native" else "inference"
    patient = overlay(directory, {"envoy.filters.http.ext_proc": {"message_timeout": "10s"}}, listener)
    envoy = {"overlay": str(patient), "frontend": request.param, "shared_folder": str(directory / "shared")}
    # By expected latency, as by default: the one policy that all estimators move.
    policy = {"name": "expected_latency"}
    stack = Stack(
        directory,
        workers=2,
        gpus=("A100", "A100"),
        models=("emulated_tft", "emulated_bert_large", "digits"),
        settings={**SETTINGS, "envoy": envoy},
        policy=policy,
    )
    async with running(stack):
        await stack.count_unpicked()
        yield stack


async def test_a_stranger_cannot_draw_all_picks_to_one_worker(stack: Stack) -> None:
    attacker = Attacker(stack)
    hostile = {"x-batch-rows": "-1e6"}

    async def in_flight() -> int:
        return sum(worker["in_flight"] for worker in (await stack.get("/workers"))["workers"])

    async def picked_or_refused() -> bool:
        # Envoy's module decides when it has read the JSON: until then the upload is at no worker.
        return refused.done() or stack.config.envoy.frontend == "native" or await in_flight() > 0

    async def only_the_upload_is_left() -> bool:
        return await in_flight() <= 1

    # A row counts for nothing before anything is known of its time.
    await honest_requests_are_served_by_policy(stack)
    # While an upload that stops is in flight, its worker is never idle, and so never counted anew.
    reader, writer = await attacker.stopped_upload(hostile)
    refused = asyncio.create_task(reader.readline())
    try:
        await eventually(picked_or_refused, "the upload has come to the balancer")
        await asyncio.gather(*(attacker.rest_inference(headers=hostile) for _ in range(12)))
        await eventually(only_the_upload_is_left, "what the other twelve did has been counted")
        served: Counter[str] = Counter()
        # Where the machine is busy, one worker may be done with each before the next one comes, which tells nothing.
        for _ in range(3):
            # Fewer than one worker may hold, so that its limit sends none of them to the other.
            answers = await asyncio.gather(*(attacker.rest_inference() for _ in range(12)))
            outputs = [output for answer in answers for output in json.loads(answer.text)["outputs"]]
            served.update(output["data"][0] for output in outputs if output["name"] == "WORKER")
            if len(served) == len(stack.specs):
                break
        assert len(served) == len(stack.specs), served
    finally:
        refused.cancel()
        writer.close()
    await honest_requests_are_served_by_policy(stack)


@pytest.mark.parametrize("timeout", ["9" * 5000 + "S", "9" * 9 + "m", b"\xb2S", b"\xd9\xa3S", "S", "-1S", "1e9S"])
async def test_a_stranger_cannot_pass_by_the_table_with_a_timeout_that_cannot_be_read(
    stack: Stack, timeout: str | bytes
) -> None:
    # By REST, since clients for gRPC set this header themselves.
    value = timeout.decode("latin-1") if isinstance(timeout, bytes) else timeout
    answer = await Attacker(stack).rest_inference("digits", {"grpc-timeout": value})
    assert answer.code in {"400", "431"}
    await honest_requests_are_served_by_policy(stack)


@pytest.mark.parametrize("field", ["model_version", "id", "model_name"])
@pytest.mark.parametrize("size_bytes", [257, 2_000_000, 6_000_000])
async def test_a_stranger_cannot_pass_by_the_table_or_bloat_it_by_a_huge_field(
    stack: Stack, field: str, size_bytes: int
) -> None:
    request = inference("digits")
    setattr(request, field, "x" * size_bytes)
    answer = await Attacker(stack).grpc("ModelInfer", request)
    assert answer.code in {"INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}
    await honest_requests_are_served_by_policy(stack)


@pytest.mark.parametrize("field", ["model_name", "model_version", "id"])
async def test_a_stranger_cannot_pass_by_the_table_with_a_text_that_is_none(stack: Stack, field: str) -> None:
    request = inference("digits")
    setattr(request, field, "@@@@")
    message = request.SerializeToString().replace(b"@@@@", b"a\xff\xfeb")
    answer = await Attacker(stack).grpc("ModelInfer", message)
    assert answer.code == "INVALID_ARGUMENT"
    assert answer.text.startswith(f"{field}: ")
    assert "UTF-8" in answer.text
    await honest_requests_are_served_by_policy(stack)


async def test_a_stranger_cannot_lose_the_outcomes_of_others_with_an_id_that_is_no_text(stack: Stack) -> None:
    attacker = Attacker(stack)
    hostile = {"x-request-id": "a\udcff\udcfeb"}
    honest = [asyncio.create_task(attacker.grpc("ModelInfer", inference(), timeout_s=30)) for _ in range(8)]
    answers = await asyncio.gather(*(attacker.rest("/v2/models/emulated_tft", hostile, method="GET") for _ in range(8)))
    assert {answer.code for answer in answers} == {"200"}
    assert [(await request).code for request in honest] == ["OK"] * len(honest)
    await honest_requests_are_served_by_policy(stack)


async def test_a_stranger_cannot_pass_by_the_table_by_many_parameters_or_dimensions(stack: Stack) -> None:
    count = 200_000
    request = inference("digits")
    for number in range(count):
        request.parameters[f"key-{number}"].int64_param = number
    shaped = inference("digits")
    shaped.inputs[0].shape.extend([1] * count)
    many, long = [await Attacker(stack).grpc("ModelInfer", each) for each in (request, shaped)]
    assert many.code == "INVALID_ARGUMENT"
    if stack.config.envoy.frontend == "proxy":
        assert "counts 256 at most" in many.text
        # It reads the first dimension alone, however many there are.
        assert long.code == "UNAVAILABLE"
    else:
        assert long.code == "INVALID_ARGUMENT"
        assert all("has more than 1024 values, which is refused" in each.text for each in (many, long))
    await honest_requests_are_served_by_policy(stack)


@pytest.mark.parametrize("name", ["x-sequence-id", "x-model-name", "x-routing-key", "x-priority", "x-batch-rows"])
async def test_a_header_cannot_pass_by_the_table(stack: Stack, name: str) -> None:
    value = "emulated_tft" if name == "x-model-name" else "1"
    attacker = Attacker(stack)
    assert (await attacker.rest_inference("digits", {name: value})).code == "503"
    assert (await attacker.grpc("ModelInfer", inference("digits"), [(name, value)])).code == "UNAVAILABLE"
    pinned = inference(model_version="2")
    assert (await attacker.grpc("ModelInfer", pinned, [(name, value)])).code in {"NOT_FOUND", "UNAVAILABLE"}


async def test_a_sequence_id_cannot_pass_by_the_limits(stack: Stack) -> None:
    attacker = Attacker(stack)

    async def some_refused() -> bool:
        """All of one sequence goes to one worker, which takes 16 at most, if so many are there at once."""
        answers = await asyncio.gather(*(attacker.rest_inference(headers={"x-sequence-id": "1"}) for _ in range(60)))
        codes = {answer.code for answer in answers}
        assert codes <= {"200", "429"}
        return "429" in codes

    await eventually(some_refused, "a request beyond the limit is refused")
    await honest_requests_are_served_by_policy(stack)


async def test_an_id_used_twice_cannot_withdraw_the_other_request(stack: Stack) -> None:
    attacker = Attacker(stack)
    slow = inference("emulated_bert_large")
    same = [("x-request-id", "same")]

    async def in_flight() -> bool:
        return any(worker["in_flight"] for worker in (await stack.get("/workers"))["workers"])

    withdrawn = await stack.metric("balancer_outcomes_total", result="unmatched")
    honest = [asyncio.create_task(attacker.grpc("ModelInfer", slow, same, timeout_s=60)) for _ in range(24)]
    await eventually(in_flight, "honest requests are in flight")
    while not all(request.done() for request in honest):
        # Ends in Envoy, without a pick, under the id of the others.
        assert (await attacker.unreadable(same)).code == "INVALID_ARGUMENT"
    assert [(await request).code for request in honest] == ["OK"] * len(honest)
    await honest_requests_are_served_by_policy(stack)
    assert await stack.metric("balancer_outcomes_total", result="unmatched") == withdrawn


async def test_a_stranger_cannot_blame_the_worker_of_a_key_by_bodies_that_are_none(stack: Stack) -> None:
    attacker = Attacker(stack)
    path, key = "/v2/models/emulated_tft/infer", {"x-routing-key": "k1", "content-type": "application/json"}
    answers = await asyncio.gather(*(attacker.rest(path, key, "no JSON object") for _ in range(12)))
    assert {answer.code for answer in answers} <= {"400", "500"}
    await nothing_is_left_over(stack)
    assert {worker["error_rate"] for worker in (await stack.get("/workers"))["workers"]} == {0}


INFER, STREAM = (f"/inference.GRPCInferenceService/Model{name}" for name in ("Infer", "StreamInfer"))
REST = "/v2/models/emulated_tft/infer"


def asking(stack: Stack, path: str) -> tuple[Unread, bytes]:
    """A client that takes no answers, and the body of an inference."""
    if path == REST:
        tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}
        return Unread(stack.url, path, content_type="application/json"), json.dumps({"inputs": [tensor]}).encode()
    message = inference().SerializeToString()
    return Unread(stack.url, path), grpc_head(len(message)) + message


@pytest.mark.parametrize("path", [INFER, STREAM, REST])
async def test_a_stranger_who_reads_no_answer_keeps_no_place(stack: Stack, path: str) -> None:
    """Two workers take 32 requests together."""
    stranger, body = asking(stack, path)
    await stranger.start()
    for _ in range(5):
        before = await decisions(stack)
        await stranger.ask(body, 20)
        await eventually(lambda: decisions(stack), until=lambda found, before=before: found >= before + 20)
        await honest_requests_are_served_by_policy(stack)
    await stranger.stop()


@pytest.mark.parametrize("path", [INFER, STREAM, REST])
async def test_a_stranger_who_stops_in_his_requests_keeps_no_place(stack: Stack, path: str) -> None:
    stranger, body = asking(stack, path)
    await stranger.start()
    await stranger.ask(body[:-2], 100, whole=False)

    async def all_are_served() -> bool:
        answers = await asyncio.gather(
            *(Attacker(stack).grpc("ModelInfer", inference(), timeout_s=PATIENCE_S) for _ in range(20))
        )
        return {answer.code for answer in answers} == {"OK"}

    # Those of the stranger may be coming still, and are counted for as long as it takes to refuse them.
    await eventually(all_are_served, "honest requests are served beside the stranger's")
    await honest_requests_are_served_by_policy(stack)
    await stranger.stop()
