"""A relay behind a real server of its own, and a balancer's two collectors for it to report to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from balancer.reports.collector import Collector
from balancer.reports.intake import Intake
from balancer.reports.relayed import RelayCollector
from balancer.reports.relaying import Relay
from balancer.scheduler.events import Event

PERIOD_S = 0.01


@contextlib.asynccontextmanager
async def relaying(targets: Sequence[str], period_s: float = PERIOD_S) -> AsyncIterator[tuple[Relay, str]]:
    """The relay, and where agents report to it."""
    relay = Relay(targets, None, period_s)
    async with _serving(relay.collector) as address:
        running = asyncio.create_task(relay.run())
        try:
            yield relay, address
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def balancing(
    on_event: Callable[[Event], None], *, port: int = 0, **of_relays: Any
) -> AsyncIterator[tuple[Intake, str]]:
    """What takes in reports of agents and relays alike, and where; further options are those of `RelayCollector`."""
    intake = Intake(on_event)
    options = {"silence_s": 30.0} | of_relays
    collectors = Collector(intake, silence_s=30.0), RelayCollector(intake, **options)
    async with _serving(*collectors, port=port) as address:
        yield intake, address


@contextlib.asynccontextmanager
async def _serving(*collectors: Collector | RelayCollector, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    for collector in collectors:
        collector.add_to(server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)
