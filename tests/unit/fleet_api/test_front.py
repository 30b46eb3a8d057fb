"""The HTTP port that calls about the fleet share with what the balancer forwards."""

import asyncio
import time

import aiohttp
from aiohttp import web
from support.fleets import make_router

from balancer.channels.channels import Links
from balancer.config.config import from_mapping
from balancer.extproc.names import FLEET_HEALTH_PATH
from balancer.server.fleet_front import FleetFront
from balancer.server.metrics import Metrics
from balancer.stack.process import free_port_range
from policies.round_robin import RoundRobin


class Waiting:
    """Answers nobody, and notes that somebody came and left."""

    def __init__(self) -> None:
        self.came, self.left = asyncio.Event(), asyncio.Event()

    def takes(self, path: str) -> bool:
        return path.endswith("/infer")

    async def answer(self, _: web.BaseRequest) -> web.StreamResponse:
        self.came.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


async def test_a_client_that_leaves_ends_what_is_forwarded_for_it_and_others_are_answered() -> None:
    port = free_port_range(2)
    router, links, waiting = make_router(1, RoundRobin()), Links(), Waiting()
    config = from_mapping({"listen": {"fleet": f"127.0.0.1:{port}"}})
    front = FleetFront(config, 0, router, Metrics(router, time.monotonic), links, [waiting])
    await front.listen(None)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port + 1}") as session:
            call = asyncio.create_task(session.post("/v2/models/m/infer", data=b"{}"))
            await asyncio.wait_for(waiting.came.wait(), 30)
            async with session.get(FLEET_HEALTH_PATH) as response:
                assert response.status == 503, "no list of workers yet"
            call.cancel()
            await asyncio.wait_for(waiting.left.wait(), 30)
    finally:
        await front.stop()
        await links.close()
