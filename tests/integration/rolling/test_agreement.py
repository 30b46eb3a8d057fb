"""Two gateways share nothing but the agents' reports: they agree on what hashes tell, and know what the other has in
flight."""

from __future__ import annotations

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from support.inputs import input_of
from support.load import steady_load
from support.replicas import Gateways
from support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

KEYS = range(12)


async def of_keys(url: str) -> list[str]:
    """The worker that answers for each key."""
    value = input_of(grpc_aio, "INPUT", np.ones((1, 4), np.float32))
    found = []
    async with grpc_aio.InferenceServerClient(url) as client:
        for key in KEYS:
            result = await client.infer("emulated_tft", [value], headers={"x-routing-key": f"key {key}"})
            found.append(result.as_numpy("WORKER").ravel()[0].decode())
    return found


async def of_sequences(url: str, step: int) -> list[tuple[str, int]]:
    """The worker that answers the step of each sequence, and the sum so far."""
    found = []
    async with grpc_aio.InferenceServerClient(url) as client:
        for sequence in range(1, len(KEYS) + 1):
            result = await client.infer(
                "sequence_sum",
                [input_of(grpc_aio, "VALUE", np.array([[1]], np.int64))],
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            found.append((result.as_numpy("WORKER").ravel()[0].decode(), int(result.as_numpy("SUM")[0, 0])))
    return found


async def test_sequences_and_keys_go_to_one_worker_by_whichever_gateway(gateways: Gateways) -> None:
    first, second = gateways.stack.url, gateways.second.url
    # The loads that the two balancers count differ meanwhile.
    async with steady_load(first, clients=4) as load:
        assert await of_keys(first) == await of_keys(second)
        # The requests of a sequence come by either gateway in turn.
        steps = [await of_sequences((first, second)[step % 2], step) for step in range(4)]
    assert not load.failures()
    assert len({worker for worker, _ in steps[0]}) > 1
    for step, answers in enumerate(steps):
        assert answers == [(worker, step + 1) for worker, _ in steps[0]]


async def answers(admin: str) -> float:
    """How many questions of agents a balancer answered."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{admin}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("balancer_report_questions_total"))


async def peers(gateways: Gateways) -> float:
    """Requests pending at the workers that the second balancer did not send, as far as it knows."""
    page = await gateways.second.get("/workers")
    return sum(worker["pending"] - worker["in_flight"] for worker in page["workers"])


async def test_both_answer_and_each_counts_what_the_other_sent(gateways: Gateways) -> None:
    before = [await answers(admin) for admin in gateways.admins]
    async with steady_load(gateways.stack.url, clients=16) as load:
        for admin, count in zip(gateways.admins, before, strict=True):
            await eventually(
                lambda admin=admin: answers(admin),
                f"{admin} is asked again and again",
                until=lambda found, count=count: found > count + 100,
            )
        await eventually(
            lambda: peers(gateways),
            "the second balancer knows of requests that the first has in flight",
            until=lambda found: found >= 4,
        )
    assert not load.failures()


async def test_they_still_do_once_one_of_the_balancers_was_killed_and_is_back(gateways: Gateways) -> None:
    first, second = gateways.stack.url, gateways.second.url
    begun = await of_sequences(first, 0)
    keyed = await of_keys(second)
    async with steady_load(first, clients=2) as load, steady_load(second, clients=2) as at_second:
        await gateways.second.balancer.kill()
        assert [worker for worker, _ in await of_sequences(first, 1)] == [worker for worker, _ in begun]
        await gateways.second.start_balancer()
        await gateways.all_ready()
        # It remembers nothing, and needs not.
        assert await of_keys(second) == keyed
        assert await of_sequences(second, 2) == [(worker, 3) for worker, _ in begun]
    assert not load.failures()
    assert not at_second.failures()
