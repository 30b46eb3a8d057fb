"""Two gateways tell each other, by way of the workers' agents, what they have in flight."""

from __future__ import annotations

import aiohttp
import pytest
from support import fronts
from support.load import steady_load
from support.replicas import Gateways
from support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


async def answers(admin: str) -> float:
    """How many questions of agents a balancer answered."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{admin}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("balancer_report_questions_total"))


async def others(gateways: Gateways) -> float:
    """Requests pending at the workers that the second balancer did not send, as far as it knows."""
    page = await gateways.second.get("/workers")
    return sum(worker["pending"] - worker["in_flight"] for worker in page["workers"])


@fronts.frontend("native", "pick")
async def test_both_answer_and_each_counts_what_the_other_sent(gateways: Gateways) -> None:
    before = [await answers(admin) for admin in gateways.admins]
    async with steady_load(gateways.stack.url, clients=16) as load:
        for admin, count in zip(gateways.admins, before, strict=True):

            async def more(admin: str = admin, count: float = count) -> bool:
                return await answers(admin) > count + 100

            await eventually(more, f"{admin} is asked again and again")

        async def seen() -> bool:
            return await others(gateways) >= 4

        await eventually(seen, "the second balancer knows of requests that the first has in flight")
    assert not load.failures()
