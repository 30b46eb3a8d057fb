"""Balancers and Envoys are restarted, one after the other, while clients go on."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from support.load import steady_load
from support.replicas import Gateways
from support.waiting import eventually

from balancer.files.schema import split_address
from balancer.stack.envoyproxy import EnvoyProcess

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

CLIENTS = 2
"""Of each gateway."""


async def test_a_rolling_restart_of_the_balancers_fails_no_request(gateways: Gateways) -> None:
    stack, second = gateways.stack, gateways.second
    async with (
        steady_load(stack.url, clients=CLIENTS) as first,
        steady_load(second.url, clients=CLIENTS) as at_second,
    ):
        await stack.balancer.stop()
        await stack.start_balancer()
        await gateways.all_ready()
        await second.balancer.stop()
        await second.start_balancer()
        await gateways.all_ready()
        for load in (first, at_second):
            await load.more(50, "requests are served")
    assert not first.failures()
    assert not at_second.failures()


async def drained(envoy: EnvoyProcess) -> None:
    """Have Envoy send its clients away, and wait until none can come any more and the last has left."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{envoy.admin_url}/drain_listeners?graceful") as response:
            assert response.status == 200, await response.text()

        async def left() -> bool:
            page = f"{envoy.admin_url}/stats?filter=^http.inference.downstream_cx_active$"
            async with session.get(page) as response:
                return (await response.text()).strip().endswith(": 0")

        async def closed() -> bool:
            try:
                _, writer = await asyncio.open_connection(*split_address(envoy.endpoint))
            except ConnectionRefusedError:
                return True
            writer.close()
            return False

        await eventually(closed, "it takes no connections any more")
        await eventually(left, "the last client has left")


async def test_a_rolling_restart_of_the_envoys_fails_no_request(gateways: Gateways) -> None:
    stack, second = gateways.stack, gateways.second
    # Clients go to the first Envoy, and to the second while the first does not take them.
    async with steady_load(gateways.url, clients=2 * CLIENTS) as load:
        await drained(stack.envoy)
        await stack.envoy.stop()
        await load.more(50, "the second Envoy serves all")
        await stack.start_envoy()
        await gateways.all_ready()
        await drained(second.envoy)
        await second.envoy.stop()
        await load.more(50, "the first Envoy serves all")
        await second.start_envoy()
        await gateways.all_ready()
    assert not load.failures()
