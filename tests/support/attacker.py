"""What a stranger sends to the listener, and what honest requests get meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.stack.stack import read_samples, sum_of
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually

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
