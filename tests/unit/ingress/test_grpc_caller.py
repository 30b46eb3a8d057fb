"""Messages of protobuf: what is made of a gRPC listener's answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from balancer.ingress import grpc_caller
from balancer.ingress.caller import Caller
from balancer.ingress.calls import UnservableError, call_of
from balancer.ingress.grpc_caller import INFER_PATH
from balancer.ingress.message import Message
from balancer.ingress.outcomes import LATE, Answer, Failure

BODY = service_pb2.ModelInferRequest(model_name="digits", raw_input_contents=[b"\x00" * 64]).SerializeToString()
HEADERS = {"content-type": "application/x-protobuf", "x-tenant": "blue", "authorization": "of-somebody"}
ASKED = Message("a-1", BODY, HEADERS, published_s=100.0, position=None)
Answering = Callable[[bytes, Any], Awaitable[bytes]]


def serving(answering: Answering, credentials: grpc.ServerCredentials | None = None) -> tuple[grpc.aio.Server, int]:
    """A server to be started, and its port."""
    server = grpc.aio.server()
    infer = grpc.unary_unary_rpc_method_handler(answering)
    service, method = INFER_PATH[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: infer}),))
    at = "127.0.0.1:0"
    return server, (server.add_secure_port(at, credentials) if credentials else server.add_insecure_port(at))


@asynccontextmanager
async def listening(answering: Answering) -> AsyncIterator[tuple[str, grpc.aio.Server]]:
    server, port = serving(answering)
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        await server.stop(None)


async def called(listener: str, until_s: float = float("inf")) -> Answer | Failure:
    caller = Caller(listener, unix_s=lambda: 100.0)
    await caller.open()
    try:
        return await caller.call(call_of(ASKED), ASKED, until_s)
    finally:
        await caller.close()


async def test_it_is_sent_and_answered_as_it_is() -> None:
    seen: dict[str, object] = {}

    async def answer(body: bytes, context: Any) -> bytes:
        seen.update(dict(context.invocation_metadata()), body=body, left_s=context.time_remaining())
        return b"said"

    async with listening(answer) as (listener, _):
        found = await called(listener, until_s=102.0)
    assert found == Answer(b"said", {"content-type": "application/x-protobuf", "x-status": "0"})
    assert (seen["body"], seen["x-request-id"], seen["x-tenant"]) == (BODY, "a-1", "blue")
    assert "authorization" not in seen
    assert 0 < float(str(seen["left_s"])) < 3.0, "gRPC says it rounded up"


@pytest.mark.parametrize(
    ("code", "said", "final", "begun"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "wrong shape", True, 0),
        (grpc.StatusCode.UNIMPLEMENTED, "no such call", True, 0),
        (grpc.StatusCode.PERMISSION_DENIED, "not yours", True, 0),
        (grpc.StatusCode.NOT_FOUND, "no such model", False, 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", False, 0),
        (grpc.StatusCode.INTERNAL, "the model failed", False, 3),
        (grpc.StatusCode.UNAVAILABLE, "no worker has room", False, 0),
        (grpc.StatusCode.UNAVAILABLE, "upstream connect error or disconnect/reset before headers", False, 1),
    ],
)
async def test_a_refusal_says_whether_it_is_the_last_word(
    code: grpc.StatusCode, said: str, final: bool, begun: int
) -> None:
    async def answer(_: bytes, context: Any) -> bytes:
        await context.abort(code, said, trailing_metadata=(("grpc-retry-pushback-ms", "300"),))
        return b""

    async with listening(answer) as (listener, _):
        found = await called(listener)
    assert isinstance(found, Failure)
    assert (found.final, found.begun, found.after_s) == (final, begun, 0.3)
    assert said in found.reason


async def test_who_does_not_answer_may_have_begun_and_who_is_not_there_has_not() -> None:
    gone = await called("http://127.0.0.1:1")
    assert isinstance(gone, Failure)
    assert (gone.final, gone.begun) == (False, 0)
    assert "127.0.0.1:1" in gone.reason

    asked = asyncio.Event()

    async def never(_: bytes, context: Any) -> bytes:
        asked.set()
        return await asyncio.Future()

    async with listening(never) as (listener, server):
        calling = asyncio.create_task(called(listener))
        await asyncio.wait_for(asked.wait(), 30)
        await server.stop(None)
        lost = await calling
    assert isinstance(lost, Failure)
    assert (lost.final, lost.begun) == (False, 1)


async def test_nobody_waits_beyond_the_deadline_nor_for_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_caller._OPTIONS) | {"grpc.max_receive_message_length": 100}
    monkeypatch.setattr(grpc_caller, "_OPTIONS", tuple(options.items()))

    async def long(_: bytes, context: Any) -> bytes:
        return b"x" * 101

    async def never(_: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "late")
        return b""

    async with listening(never) as (listener, _):
        assert await called(listener, until_s=100.2) == LATE
    async with listening(long) as (listener, _):
        found = await called(listener)
    assert isinstance(found, Failure)
    assert found.final


@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"{}"])
def test_what_is_no_protobuf_is_never_sent(body: bytes) -> None:
    with pytest.raises(UnservableError, match="ModelInferRequest"):
        call_of(Message("a-1", body, HEADERS, published_s=100.0, position=None))
