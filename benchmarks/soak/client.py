"""Honest clients: a closed loop over gRPC and REST that accounts for every request.

As cheap as may be, since it shares the machine with what it asks: messages are made once, answers are not decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from balancer.files.schema import split_address
from benchmarks.client import INFER
from benchmarks.soak.deployment import ID_HEADER
from benchmarks.stack import MODEL

DEADLINE_S = 60.0
"""Of each request."""
_AFTER_FAILURE_S = 0.05
"""A client waits so long before its next request, as real ones back off."""
_NAME_BYTES = len(b"worker-0")
_CHANNEL_OPTIONS = (
    # Every failure shall be seen: retries are Envoy's.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


@dataclass(frozen=True)
class Failure:
    """A request that did not end well."""

    id: int
    protocol: str
    started_s: float
    ended_s: float
    code: str
    """gRPC's code, or REST and its status, or what became of the connection."""
    details: str


@dataclass
class Load:
    """Keeps requests in flight until `most` were sent or it is stopped."""

    endpoint: str
    most: int
    grpc_clients: int = 12
    rest_clients: int = 4
    started_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since the epoch; of requests that were answered well, in the order of their ends."""
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    failures: list[Failure] = field(default_factory=list)
    by_worker: Counter[bytes] = field(default_factory=Counter)
    rest: int = 0
    """Of the requests answered well, those over REST."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _stopping: bool = False

    @property
    def done(self) -> int:
        """Requests that have ended."""
        return len(self.ended_s) + len(self.failures)

    def stop(self) -> None:
        """Send no more."""
        self._stopping = True

    async def run(self) -> None:
        """All of it."""
        async with contextlib.AsyncExitStack() as open_channels:
            clients = []
            for number in range(self.grpc_clients):
                if number % 4 == 0:
                    channel = grpc.aio.insecure_channel(self.endpoint, options=_CHANNEL_OPTIONS)
                    await open_channels.enter_async_context(channel)
                clients.append(self._grpc(channel.unary_unary(INFER)))
            clients += [self._rest() for _ in range(self.rest_clients)]
            await asyncio.gather(*clients)

    def longest_s(self, from_s: float, to_s: float) -> float:
        """The longest time that a request took of those under way between two seconds; 0 where there was none."""
        started, ended = np.frombuffer(self.started_s), np.frombuffer(self.ended_s)
        within = (ended >= from_s) & (started <= to_s)
        return float((ended[within] - started[within]).max(initial=0.0))

    def _next(self) -> int | None:
        number = next(self._numbers)
        return None if self._stopping or number >= self.most else number

    async def _grpc(self, infer: Any) -> None:
        message, names, now = _message(), self.by_worker, time.time
        while (number := self._next()) is not None:
            started_s = now()
            try:
                answer = await infer(message, timeout=DEADLINE_S, metadata=((ID_HEADER, str(number)),))
            except grpc.aio.AioRpcError as error:
                await self._failed(number, "gRPC", started_s, error.code().name, error.details() or "")
                continue
            self.started_s.append(started_s)
            self.ended_s.append(now())
            names[answer[-_NAME_BYTES:]] += 1

    async def _rest(self) -> None:
        host, port = split_address(self.endpoint)
        body = json.dumps({"inputs": [{"name": "INPUT", "shape": [1], "datatype": "FP32", "data": [1.0]}]}).encode()
        head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(body)}\r\n{ID_HEADER}: "
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while (number := self._next()) is not None:
            started_s = time.time()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    connection = connection or await asyncio.open_connection(host, port)
                    reader, writer = connection
                    writer.write(head.encode() + b"%d\r\n\r\n" % number + body)
                    status, content, keep = await _response(reader)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                status, content, keep = 0, repr(error).encode(), False
            if status == 200:
                self.started_s.append(started_s)
                self.ended_s.append(time.time())
                self.rest += 1
                at = content.find(b"worker-")
                self.by_worker[content[at : at + _NAME_BYTES]] += 1
            else:
                code = f"REST {status}" if status else "REST connection"
                await self._failed(number, "REST", started_s, code, content[:300].decode(errors="replace"))
            if not keep and connection is not None:
                connection[1].close()
                connection = None
        if connection is not None:
            connection[1].close()

    async def _failed(self, number: int, protocol: str, started_s: float, code: str, details: str) -> None:
        self.failures.append(Failure(number, protocol, started_s, time.time(), code, details))
        await asyncio.sleep(_AFTER_FAILURE_S)


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection may be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    _, found, rest = head.partition(b"content-length:")
    body = await reader.readexactly(int(rest.partition(b"\r\n")[0])) if found else b""
    return status, body, bool(found) and b"connection: close" not in head


def _message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    tensor = request.inputs.add(name="INPUT", datatype="FP32")
    tensor.shape.append(1)
    request.raw_input_contents.append(np.ones(1, np.float32).tobytes())
    # Of the outputs only the one that tells who answered.
    request.outputs.add(name="WORKER")
    return bytes(request.SerializeToString())


def failure_as_json(failure: Failure) -> dict[str, Any]:
    """For a line of the log."""
    return asdict(failure)
