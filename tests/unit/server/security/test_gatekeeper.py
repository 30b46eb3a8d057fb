"""What stands before every handler: errors are answered, counted and logged, and never more than once a second."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from balancer.server.metrics import Metrics
from balancer.server.security.gatekeeper import GuardedServer


class CountingFake:
    """Stands for the metrics: what was counted, by labels."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, ...]] = []
        self._labels: tuple[str, ...] = ()

    def labels(self, *labels: str) -> CountingFake:
        self._labels = labels
        return self

    def inc(self) -> None:
        self.counted.append(self._labels)


class MetricsFake(Metrics):
    """Only the counters that a gatekeeper uses."""

    def __init__(self) -> None:
        self.errors_counted = self.handler_errors = CountingFake()  # type: ignore[assignment]
        self.refused_inputs = CountingFake()  # type: ignore[assignment]


async def failing(_request: Any, _context: object) -> bytes:
    raise RuntimeError("a mistake of ours")


async def left(_request: Any, _context: object) -> bytes:
    raise grpc.aio.InternalError("as gRPC raises it where the peer has gone")


async def aborting(_request: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "not here")


@pytest.fixture
async def served() -> AsyncIterator[tuple[grpc.aio.Channel, MetricsFake]]:
    metrics = MetricsFake()
    server = grpc.aio.server()
    guarded = GuardedServer(server, metrics, None)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(failing),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(failing),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(failing),
        "Stream": grpc.stream_stream_rpc_method_handler(failing),
        "Left": grpc.stream_stream_rpc_method_handler(left),
        "Abort": grpc.stream_stream_rpc_method_handler(aborting),
    }
    guarded.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.b.Service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel, metrics
    await server.stop(None)


async def ended(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """How a call of the method ended; the server may end it before it has read anything."""
    call = channel.stream_stream(f"/a.b.Service/{method}")()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.write(b"x")
        await call.done_writing()
    return await call.code(), await call.details()


async def test_a_handler_that_raises_answers_internal_is_counted_and_logged_once_a_second(
    served: tuple[grpc.aio.Channel, MetricsFake], caplog: pytest.LogCaptureFixture
) -> None:
    channel, metrics = served
    for method in ("Unary", "UnaryStream", "StreamUnary", "Stream"):
        code, details = await ended(channel, method)
        assert code is grpc.StatusCode.INTERNAL, method
        assert "a mistake of ours" not in details
    assert metrics.errors_counted.counted == [("Service",)] * 4  # type: ignore[attr-defined]
    logged = [record for record in caplog.records if record.name == "balancer.server.internal_errors"]
    assert 1 <= len(logged) < 4
    assert logged[0].exc_info


async def test_a_handler_may_abort(served: tuple[grpc.aio.Channel, MetricsFake]) -> None:
    channel, metrics = served
    assert await ended(channel, "Abort") == (grpc.StatusCode.NOT_FOUND, "not here")
    assert metrics.errors_counted.counted == []  # type: ignore[attr-defined]


async def test_a_peer_that_leaves_is_no_error_and_fills_no_log(
    served: tuple[grpc.aio.Channel, MetricsFake], caplog: pytest.LogCaptureFixture
) -> None:
    channel, metrics = served
    assert (await ended(channel, "Left"))[0] is grpc.StatusCode.CANCELLED
    assert metrics.errors_counted.counted == []  # type: ignore[attr-defined]
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
