"""What strangers may send to a listener whose Envoy decides by itself: it lives, and nothing is left in flight."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
import pytest_asyncio
from support.bootstrap import changed
from support.envoy_fakes import a_request
from support.native import NativeRig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ATTEMPTS = 150
METHODS = ("ModelInfer", "ModelStreamInfer", "ModelReady", "ServerMetadata", "RepositoryModelLoad", "Nobodys")
PATHS = ("/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/ready", "/v2/health/live", "/v2/logging")
HEADERS = (
    *("Content-Type: application/json", "Content-Type: application/grpc", "Content-Encoding: gzip"),
    *("grpc-timeout: 99999999999H", "x-batch-rows: -1", "x-sequence-id: 7", "x-routing-key: k"),
    *("Inference-Header-Content-Length: 5", "Inference-Header-Content-Length: 99999999999", "Expect: 100-continue"),
    *(f"x-long: {'a' * 6000}", "under_score: 1", "x-gateway-destination-endpoint: 127.0.0.1:1"),
)
BODIES = (
    *(b"", b"{", b'{"inputs":[{"shape":[2,4]}]', b'{"parameters":{"sequence_id":7},"inputs":[{"shape":[1]}]}'),
    *(b"[" * 5000, b"\x00" * 4000, b'{"id":"' + b"\xff" * 300 + b'"}'),
)

IDS = {
    "not UTF-8": b"\xff\xfe\xfd",
    "a zero": b"a\x00b",
    "an escaped zero": rb"a\u0000b",
    "an open end": b'"x',
    "a new line and colours": rb"\"\n\u001b[31m",
    "half a character": rb"\ud800",
    "two bytes each": b"\xc3\xa9" * 100,
    "many": b"x" * 256,
    "a format of Envoy's": b"%DYNAMIC_METADATA(balancer:x)%",
}
HEADERS_OF_IDS: tuple[dict[str, str], ...] = ({}, {"x-request-id": "r" * 4000}, {"x-request-id": "\xff\xfe"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NativeRig]:
    rig = NativeRig(tmp_path_factory.mktemp("native"))
    rig.options = changed(rig.options, access_log=str(rig.directory / "access.log"))
    async with rig.running():
        yield rig


async def test_ids_stay_in_their_field_of_envoys_log(rig: NativeRig) -> None:
    """Each request is answered, Envoy lives, and each line of the log is one object with the id as it came."""
    log, sent = rig.directory / "access.log", 0
    rig.router.state.log_lines(1.0)
    for raw in IDS.values():
        body = b'{"id":"' + raw + b'","inputs":[{"name":"x","shape":[1,4],"datatype":"UINT8","data":[1]}]}'
        for headers in HEADERS_OF_IDS:
            url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
            async with rig.http.post(url, data=body, headers=headers) as answer:
                assert answer.status in {200, 400}
                assert answer.status == 200 or "is refused" in (await answer.json())["error"]
                sent += 1
    assert await rig.picks()
    lines = await rig.logged(log, sent + 1)
    ids = [line["triton_request_id"] for line in lines if line["status"] == 200]
    assert "x" * 256 in ids
    assert IDS["a format of Envoy's"].decode() in ids
    assert IDS["two bytes each"].decode() in ids


async def raw(rig: NativeRig, chance: random.Random) -> None:
    """HTTP/1.1 that may be cut anywhere, or say less or more than it sends."""
    host, _, port = rig.envoy.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = chance.choice(BODIES)
    lines = [f"POST {chance.choice(PATHS)} HTTP/1.1", "Host: h", *chance.sample(HEADERS, chance.randrange(4))]
    if chance.random() < 0.3:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n" % (len(body), body) + chance.choice(
            (b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"zz\r\n", b"")
        )
    else:
        lines.append(f"Content-Length: {max(len(body) + chance.choice((-3, 0, 0, 0, 3)), 0)}")
    message = "\r\n".join([*lines, "", ""]).encode() + body
    cut = chance.randrange(len(message) + 1) if chance.random() < 0.4 else len(message)
    with contextlib.suppress(ConnectionError, TimeoutError):
        for part in (message[: cut // 2], message[cut // 2 : cut]):
            writer.write(part)
            await writer.drain()
        if chance.random() < 0.7:
            await asyncio.wait_for(reader.read(4096), 0.2)
    writer.transport.abort()


async def garbled(rig: NativeRig, chance: random.Random) -> None:
    """A gRPC message that may be cut, changed or none, and a client that may leave at any time."""
    message = bytearray(a_request(chance.choice(("m", "", "x" * 300))).SerializeToString())
    for _ in range(chance.randrange(4)):
        message[chance.randrange(len(message))] = chance.randrange(256)
    if chance.random() < 0.3:
        del message[chance.randrange(len(message)) :]
    async with grpc.aio.insecure_channel(rig.envoy.endpoint) as channel:
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{chance.choice(METHODS)}")(
            metadata=chance.sample([("x-batch-rows", "1e9"), ("x-long", "a" * 6000), ("x-priority", "2")], 1),
            timeout=chance.choice((0.001, 0.05, 1)),
        )
        # The client has errors of its own for a call that it has just left.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            for _ in range(chance.randrange(3)):
                await call.write(bytes(message))
            if chance.random() < 0.5:
                call.cancel()
            await call.done_writing()
            await call.read()
        call.cancel()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("attack", [raw, garbled])
async def test_envoy_lives(
    rig: NativeRig, attack: Callable[[NativeRig, random.Random], Awaitable[None]], seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(ATTEMPTS // 10):
        await asyncio.gather(*(attack(rig, random.Random(chance.random())) for _ in range(10)))
    assert await rig.picks()
    await rig.all_ended()
    # Nobody was told of twice, nor forgotten.
    assert (rig.all_outcomes()["source"] == 1).sum() == rig.router.state.counts()["picked"]
