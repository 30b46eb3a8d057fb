"""Kinds of attack: how an input is made of a generator, sent to a port, and answered."""

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
    """Clients of every port, none of which is honest."""

    def __init__(self, target: Target) -> None:
        config = target.config
        self.workers, self.listener = target.workers, target.url
        self.envoy = grpc.aio.insecure_channel(config.listen.envoy_addresses(0)[-1])
        self.agents = grpc.aio.insecure_channel(config.listen.reports_address(0))
        self.fleet = grpc.aio.insecure_channel(f"127.0.0.1:{target.fleet_port}")
        self.fleet_http = f"127.0.0.1:{target.fleet_port + 1}"
        self.admin = config.listen.admin_address(0)

    async def close(self) -> None:
        for channel in (self.envoy, self.agents, self.fleet):
            await channel.close()


async def _process(by: Attacker, rng: Random) -> str:
    metadata = (("x-ext-proc-headers-only", "true"),) if rng.random() < 0.7 else ()
    return await _stream(by.envoy, _PROCESS, inputs.processing(rng), metadata)


async def _report(by: Attacker, rng: Random) -> str:
    return await _stream(by.agents, REPORTS, inputs.reports(rng, [worker.name for worker in by.workers]))


async def _outcomes(by: Attacker, rng: Random) -> str:
    sent = inputs.access_log(rng, [worker.spec.grpc_endpoint for worker in by.workers])
    return await _stream(by.envoy, _OUTCOMES, sent)


async def _fleet(by: Attacker, rng: Random) -> str:
    """A call about the fleet, as Envoy hands it over."""
    method, sent = inputs.fleet_call(rng)
    return await _stream(by.fleet, method, [sent], (("x-gateway-principal", "-"),) if rng.random() < 0.5 else ())


async def _forwarded(by: Attacker, rng: Random) -> str:
    """An inference, or a stream of them, that the balancer is to forward; ids and bodies collide on purpose."""
    sent = [inputs.inference(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return await _stream(by.envoy, STREAM if len(sent) > 1 or rng.random() < 0.2 else INFER, sent)


async def _forwarded_rest(by: Attacker, rng: Random) -> str:
    """An inference of REST that the balancer is to forward, past Envoy or through it."""
    request = inputs.rest_inference(rng)
    return await wire.exchange(by.listener if rng.random() < 0.5 else by.fleet_http, request)


@dataclass(frozen=True)
class Kind:
    name: str
    share: float
    """Of all inputs."""
    send: Callable[[Attacker, Random], Awaitable[str]]
    """Says how it was answered."""


KINDS = (
    Kind("ext_proc", 0.20, _process),
    Kind("reports", 0.15, _report),
    Kind("access log", 0.15, _outcomes),
    Kind("fleet gRPC", 0.05, _fleet),
    Kind("fleet HTTP", 0.05, lambda by, rng: wire.exchange(by.fleet_http, wire.http1_request(rng))),
    Kind("ADS", 0.05, lambda by, rng: _stream(by.envoy, _DISCOVERY, inputs.discovery(rng))),
    Kind("admin", 0.10, lambda by, rng: wire.exchange(by.admin, wire.admin_request(rng))),
    Kind("HTTP/1", 0.10, lambda by, rng: wire.exchange(by.listener, wire.http1_request(rng))),
    Kind("gRPC", 0.10, lambda by, rng: wire.exchange(by.listener, wire.http2_call(rng))),
    Kind("HTTP/2", 0.05, lambda by, rng: wire.exchange(by.listener, wire.http2_frames(rng))),
)
"""Ports of the balancer first, then Envoy's listener."""
KINDS_OF = {
    "pick": KINDS,
    "native": KINDS[-3:],
    "proxy": (Kind("forwarded gRPC", 0.5, _forwarded), Kind("forwarded REST", 0.5, _forwarded_rest)),
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
