"""Sends inputs, by kind: each kind says how its input number N is made, and how it is sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc

from balancer.files.schema import split_address
from balancer.proxy.messages import INFER, STREAM
from dev.fuzz import hostile, messages, rest, wire
from dev.fuzz.rig import Target

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_REPORTS = "/balancer.telemetry.v1.Reports/Stream"
_OUTCOMES = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
_DISCOVERY = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
_ENTRIES = 10
"""Access log entries of one input."""
_CALL_S = 5.0
_GARBLED = 0.15
"""Of the inputs over gRPC, the share whose bytes are changed at random."""

Sender = Callable[["Attacker", Random], Awaitable[str]]


@dataclass(frozen=True)
class Kind:
    """One kind of attack."""

    name: str
    share: float
    """Of all inputs."""
    send: Sender
    """Makes an input of a generator, sends it, and says how it was answered."""


class Attacker:
    """Clients of every port, none of which is honest."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.workers = tuple(worker.name for worker in target.workers)
        self.upstreams = tuple(f"127.0.0.1:{worker.grpc_port}" for worker in target.workers)
        self._envoy = grpc.aio.insecure_channel(target.config.own_envoy_address(0))
        self._agents = grpc.aio.insecure_channel(target.config.reports_address(0))
        self._fleet = grpc.aio.insecure_channel(f"127.0.0.1:{target.fleet_port}")

    async def close(self) -> None:
        await self._envoy.close()
        await self._agents.close()
        await self._fleet.close()

    async def run(self, kind: Kind, seed: int, numbers: Iterable[int], at_once: int = 16) -> Counter[str]:
        """Send those inputs, some at a time; returns the answers, counted."""
        answers: Counter[str] = Counter()
        waiting = iter(numbers)

        async def client() -> None:
            for number in waiting:
                answers[await kind.send(self, generator(seed, kind, number))] += 1

        await asyncio.gather(*(client() for _ in range(at_once)))
        return answers

    async def process(self, rng: Random) -> str:
        sent = _damaged(rng, messages.processing_requests(rng))
        metadata = (("x-ext-proc-headers-only", "true"),) if rng.random() < 0.7 else ()
        return await _stream(self._envoy, _PROCESS, sent, metadata)

    async def report(self, rng: Random) -> str:
        return await _stream(self._agents, _REPORTS, _damaged(rng, messages.reports(rng, self.workers)))

    async def outcomes(self, rng: Random) -> str:
        """A stream of Envoy's access log."""
        entries = messages.access_logs(rng, self.upstreams, _ENTRIES)
        return await _stream(self._envoy, _OUTCOMES, _damaged(rng, [entries]))

    async def discovery(self, rng: Random) -> str:
        return await _stream(self._envoy, _DISCOVERY, _damaged(rng, messages.discovery_requests(rng)))

    async def fleet(self, rng: Random) -> str:
        """A call about the fleet, as Envoy hands it over."""
        method, sent = messages.fleet_call(rng)
        metadata = (("x-gateway-principal", "-"),) if rng.random() < 0.5 else ()
        return await _stream(self._fleet, method, _damaged(rng, [sent]), metadata)

    async def fleet_rest(self, rng: Random) -> str:
        return await wire.exchange("127.0.0.1", self.target.fleet_port + 1, wire.http1_request(rng))

    async def forwarded(self, rng: Random) -> str:
        """An inference, or a stream of them, that the balancer is to forward; ids and bodies collide on purpose."""
        sent = [messages.inference(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        if rng.random() < 0.5:
            sent = [messages.alike(rng) for _ in sent]
        method = STREAM if len(sent) > 1 or rng.random() < 0.2 else INFER
        return await _stream(self._envoy, method, _damaged(rng, sent))

    async def forwarded_rest(self, rng: Random) -> str:
        """An inference of REST that the balancer is to forward, past Envoy or through it."""
        request = rest.inference(rng)
        if rng.random() < 0.5:
            return await self._listener(request)
        return await wire.exchange("127.0.0.1", self.target.fleet_port + 1, request)

    async def admin(self, rng: Random) -> str:
        host, port = split_address(self.target.config.admin_address(0))
        return await wire.exchange(host, port, wire.admin_request(rng))

    async def http1(self, rng: Random) -> str:
        """A connection to Envoy's listener in HTTP/1."""
        return await self._listener(wire.http1_request(rng))

    async def http2(self, rng: Random) -> str:
        """The same in HTTP/2: a call."""
        return await self._listener(wire.http2_call(rng))

    async def frames(self, rng: Random) -> str:
        return await self._listener(wire.http2_frames(rng))

    async def _listener(self, request: bytes) -> str:
        host, port = split_address(self.target.url)
        return await wire.exchange(host, port, request)


KINDS = (
    Kind("ext_proc", 0.20, Attacker.process),
    Kind("reports", 0.15, Attacker.report),
    Kind("access log", 0.15, Attacker.outcomes),
    Kind("fleet gRPC", 0.05, Attacker.fleet),
    Kind("fleet HTTP", 0.05, Attacker.fleet_rest),
    Kind("ADS", 0.05, Attacker.discovery),
    Kind("admin", 0.10, Attacker.admin),
    Kind("HTTP/1", 0.10, Attacker.http1),
    Kind("gRPC", 0.10, Attacker.http2),
    Kind("HTTP/2", 0.05, Attacker.frames),
)
"""Ports of the balancer first, then Envoy's."""
FORWARDED = (
    Kind("forwarded gRPC", 0.5, Attacker.forwarded),
    Kind("forwarded REST", 0.5, Attacker.forwarded_rest),
)
"""Of a balancer with the front end `proxy`; another forwards nothing."""


def generator(seed: int, kind: Kind, number: int) -> Random:
    """What input `number` of a kind is made from."""
    return Random(f"{seed}/{kind.name}/{number}")


def _damaged(rng: Random, sent: list[bytes]) -> list[bytes]:
    if rng.random() < _GARBLED:
        at = rng.randrange(len(sent))
        sent[at] = hostile.garbled(rng, sent[at])
    return sent


async def _stream(channel: grpc.aio.Channel, method: str, contents: list[bytes], metadata: Any = ()) -> str:
    """Send all, close, and return the status that ended the call."""

    async def sent() -> AsyncIterator[bytes]:
        for each in contents:
            yield each

    open_stream: Any = channel.stream_stream(method)
    call: Any = open_stream(sent(), timeout=_CALL_S, metadata=metadata)
    try:
        async for _ in call:
            pass
        return str((await call.code()).name)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    finally:
        call.cancel()
