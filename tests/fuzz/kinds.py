"""Kinds of attack: how an input is made of a generator, sent to a port, and answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc

from balancer.proxy.messages import INFER, STREAM
from balancer.reports.sending import METHOD as REPORTS
from fuzz import inputs, wire
from fuzz.target import Target

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_OUTCOMES = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
_DISCOVERY = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
_CALL_S = 5.0


class Attacker:
    """Clients of every port, none of which is honest; each call says how it was answered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        config = target.config
        self._envoy = grpc.aio.insecure_channel(config.listen.envoy_addresses(0)[-1])
        self._agents = grpc.aio.insecure_channel(config.listen.reports_address(0))
        self._fleet = grpc.aio.insecure_channel(f"127.0.0.1:{target.fleet_port}")
        self._fleet_http = f"127.0.0.1:{target.fleet_port + 1}"
        self._admin = config.listen.admin_address(0)

    async def close(self) -> None:
        for channel in (self._envoy, self._agents, self._fleet):
            await channel.close()

    async def process(self, rng: Random) -> str:
        metadata = (("x-ext-proc-headers-only", "true"),) if rng.random() < 0.7 else ()
        return await _stream(self._envoy, _PROCESS, inputs.processing(rng), metadata)

    async def report(self, rng: Random) -> str:
        sent = inputs.reports(rng, [worker.name for worker in self._target.workers])
        return await _stream(self._agents, REPORTS, sent)

    async def outcomes(self, rng: Random) -> str:
        upstreams = [worker.spec.grpc_endpoint for worker in self._target.workers]
        return await _stream(self._envoy, _OUTCOMES, inputs.access_log(rng, upstreams))

    async def discovery(self, rng: Random) -> str:
        return await _stream(self._envoy, _DISCOVERY, inputs.discovery(rng))

    async def fleet(self, rng: Random) -> str:
        """A call about the fleet, as Envoy hands it over."""
        method, sent = inputs.fleet_call(rng)
        metadata = (("x-gateway-principal", "-"),) if rng.random() < 0.5 else ()
        return await _stream(self._fleet, method, [sent], metadata)

    async def fleet_rest(self, rng: Random) -> str:
        return await wire.exchange(self._fleet_http, wire.http1_request(rng))

    async def forwarded(self, rng: Random) -> str:
        """An inference, or a stream of them, that the balancer is to forward; ids and bodies collide on purpose."""
        sent = [inputs.inference(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        method = STREAM if len(sent) > 1 or rng.random() < 0.2 else INFER
        return await _stream(self._envoy, method, sent)

    async def forwarded_rest(self, rng: Random) -> str:
        """An inference of REST that the balancer is to forward, past Envoy or through it."""
        request = inputs.rest_inference(rng)
        return await wire.exchange(self._target.url if rng.random() < 0.5 else self._fleet_http, request)

    async def admin(self, rng: Random) -> str:
        return await wire.exchange(self._admin, wire.admin_request(rng))

    async def http1(self, rng: Random) -> str:
        return await wire.exchange(self._target.url, wire.http1_request(rng))

    async def http2(self, rng: Random) -> str:
        return await wire.exchange(self._target.url, wire.http2_call(rng))

    async def frames(self, rng: Random) -> str:
        return await wire.exchange(self._target.url, wire.http2_frames(rng))


@dataclass(frozen=True)
class Kind:
    name: str
    share: float
    """Of all inputs."""
    send: Callable[[Attacker, Random], Awaitable[str]]


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
"""Ports of the balancer first, then Envoy's listener."""
KINDS_OF = {
    "pick": KINDS,
    "native": KINDS[-3:],
    "proxy": (
        Kind("forwarded gRPC", 0.5, Attacker.forwarded),
        Kind("forwarded REST", 0.5, Attacker.forwarded_rest),
    ),
}
"""By front end: Envoy's listener where it decides itself, and what only `proxy` forwards."""


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
