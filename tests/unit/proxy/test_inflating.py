"""What clients compressed takes no more room in the proxy than there is, inflated, by whichever protocol it comes."""

import asyncio
import gc
import gzip
import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
from aiohttp.test_utils import RawTestServer
from support.fake_worker import Gate, aborting
from support.proxied import Rig, proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.extproc.names import COMPRESSED_HEADER
from balancer.proxy.inflating import Inflating, NoRoomError
from balancer.proxy.messages import Arrived

pytestmark = pytest.mark.asyncio

MEBIBYTE = 2**20
METADATA = ((COMPRESSED_HEADER, "gzip"),)
PATH = "/v2/models/m/infer"
JSON = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()


def small(rig: Rig, most_wait_s: float = 0.05) -> Inflating:
    """Room for two of the largest messages."""
    inflating = Inflating(MEBIBYTE, rig.front.attempts.counts, 2 * MEBIBYTE, most_wait_s)
    rig.front.proxy.inflating = inflating
    return inflating


def of_size(size_bytes: int) -> bytes:
    message = service_pb2.ModelInferRequest.FromString(request())
    del message.raw_input_contents[:]
    message.raw_input_contents.append(bytes(size_bytes))
    data: bytes = message.SerializeToString()
    return data


@asynccontextmanager
async def rest_of(rig: Rig) -> AsyncIterator[str]:
    server = RawTestServer(rig.front.rest.answer)
    await server.start_server(auto_decompress=False)
    try:
        yield str(server.make_url(PATH))
    finally:
        await server.close()


async def test_of_compressed_messages_no_more_are_held_than_there_is_room_for() -> None:
    async with proxied(gate := Gate()) as rig:
        small(rig)

        def send(size_bytes: int = MEBIBYTE - 1000) -> asyncio.Task[bytes]:
            data = of_size(size_bytes)
            return asyncio.ensure_future(rig.call(data, metadata=METADATA, compression=grpc.Compression.Gzip))

        first = [send(), send()]
        await eventually(lambda: len(rig.worker.requests) == 2, "the worker has both")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send()
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "send it uncompressed" in str(raised.value.details())
        assert rig.metric("balancer_proxy_compressed_total", result="refused") == 1
        # What is not compressed needs none of that room.
        plain = asyncio.ensure_future(rig.call(of_size(1000)))
        await eventually(lambda: len(rig.worker.requests) == 3, "the worker has the plain one")
        gate.goes_on.set()
        await asyncio.gather(*first, plain)
        # More than have room wait for it, as long as a busy machine takes.
        small(rig, most_wait_s=60)
        await asyncio.gather(*(send(1000) for _ in range(20)))
        assert rig.metric("balancer_proxy_compressed_total", result="read") == 22


async def test_of_a_refused_message_nothing_stays() -> None:
    """Else its room is free again, and taken again, while its bytes are still there."""
    refuses = aborting(grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape")
    async with proxied(refuses) as rig:
        gc.collect()
        gc.disable()
        try:
            for metadata in (METADATA, ()):
                with pytest.raises(grpc.aio.AioRpcError, match="unexpected shape"):
                    await rig.call(of_size(1000), metadata=metadata, compression=grpc.Compression.Gzip)
            await eventually(lambda: not any(type(each) is Arrived for each in gc.get_objects()), "no message is held")
        finally:
            gc.enable()


async def test_a_compressed_stream_keeps_room_until_it_ends_and_leaves_some_for_others() -> None:
    async with proxied() as rig:
        inflating = small(rig)
        stream = rig.stream(metadata=METADATA, compression=grpc.Compression.Gzip)
        for _ in range(3):
            await stream.write(of_size(100_000))
            assert isinstance(await stream.read(), bytes)
        assert (inflating._free_bytes, inflating._free_of_streams) == (MEBIBYTE, 0)
        another = rig.stream(metadata=METADATA, compression=grpc.Compression.Gzip, timeout=120)
        with pytest.raises(grpc.aio.AioRpcError, match="send it uncompressed"):
            await another.read()
        assert isinstance(await rig.call(of_size(1000), metadata=METADATA, compression=grpc.Compression.Gzip), bytes)
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        await eventually(lambda: inflating._free_bytes == 2 * MEBIBYTE, "the room is free again")
        await eventually(lambda: inflating._free_of_streams == 1, "another stream may come")


async def test_who_waits_gets_room_in_order_and_nobody_takes_any_along() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    inflating = Inflating(10, counts, total_bytes=10, most_wait_s=60)
    order: list[int] = []

    async def one(number: int) -> None:
        async with inflating.room() as room:
            order.append(number)
            await asyncio.sleep(0)
            room.shrink(3)

    tasks = [asyncio.ensure_future(one(number)) for number in range(6)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 2, 4, 5]
    assert inflating._free_bytes == 10
    inflating = Inflating(10, counts, total_bytes=10, most_wait_s=0.01)
    async with inflating.room():
        with pytest.raises(NoRoomError):
            async with inflating.room():
                pass
    assert inflating._free_bytes == 10


@pytest.mark.parametrize(
    ("encoding", "body", "status", "words"),
    [
        ("gzip", gzip.compress(JSON), 200, ""),
        ("deflate", zlib.compress(JSON), 200, ""),
        ("identity", JSON, 200, ""),
        ("gzip", gzip.compress(bytes(8 * MEBIBYTE)), 400, "the request has more than 1048576 bytes"),
        ("gzip", gzip.compress(JSON)[:-9], 400, "the request's body is not of its encoding, 'gzip'"),
        ("gzip", gzip.compress(JSON)[:-8] + b"12345678", 400, "the request's body is not of its encoding, 'gzip'"),
        ("gzip", gzip.compress(JSON) * 2, 400, "the request's body is not of its encoding, 'gzip'"),
        ("deflate", b"\x78\xbb" + bytes(100), 400, "the request's body is not of its encoding, 'deflate'"),
        ("gzip", JSON, 400, "the request's body is not of its encoding, 'gzip'"),
        ("br", JSON, 400, "Content-Encoding: 'br' is not read"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)
async def test_a_body_by_http_is_inflated_within_bounds(encoding: str, body: bytes, status: int, words: str) -> None:
    async with proxied() as rig, rest_of(rig) as url, aiohttp.ClientSession() as session:
        inflating = small(rig)
        async with session.post(url, data=body, headers={"content-encoding": encoding}) as response:
            content = await response.json()
        assert (response.status, content.get("error", "")[: len(words)]) == (status, words)
        assert inflating._free_bytes == 2 * MEBIBYTE


async def test_without_room_a_body_by_http_is_refused() -> None:
    async with proxied() as rig, rest_of(rig) as url, aiohttp.ClientSession() as session:
        inflating = small(rig)
        send = session.post(url, data=gzip.compress(JSON), headers={"content-encoding": "gzip"})
        async with inflating.room(), inflating.room(), send as response:
            content = await response.json()
        assert response.status == 429
        assert "send it uncompressed" in content["error"]
        assert response.headers["retry-after"] == "1"
