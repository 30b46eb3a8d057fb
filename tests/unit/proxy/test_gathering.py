"""When joined requests go; the clock is the test's."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.proxied import request

from balancer.gateway.kserve import HeaderNames, read_call
from balancer.proxy.attempts import Clocks
from balancer.proxy.batching import Batching
from balancer.proxy.messages import OK, Answer, Arrived
from balancer.proxy.rules.latencies import Latencies
from balancer.proxy.rules.reading import read
from balancer.proxy.rules.settings import MOST_WAIT_S, BatchSettings, ModelProxy, ProxySettings

TURNS = 50
"""Of the event loop, far more than any step here takes."""


class Rig:
    """A worker that answers when it is told to."""

    def __init__(self, workers: int) -> None:
        self.now_s = 0.0
        self.begun: list[asyncio.Future[Answer]] = []
        self.batching = Batching(
            self, lambda model, version: workers, Clocks(lambda: self.now_s, lambda: 0.0), Latencies(), Counter()
        )
        model = ModelProxy(repeatable=True, batch=BatchSettings(max_rows=8, wait_s=0.0))
        self.batching.configure(ProxySettings(models={"m": model}))
        self.sent: list[asyncio.Task[Answer]] = []

    async def infer(self, arrived: Arrived) -> Answer:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    async def send(self) -> None:
        data = request("m")
        found = read(data)
        call = read_call(
            {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"},
            found.fields,
            HeaderNames(),
        )
        arrived = Arrived(call, data, (), repeatable=True, id_spans=found.id_spans)
        self.sent.append(asyncio.create_task(self.batching.infer(arrived)))
        await turns()

    async def answer(self, number: int) -> None:
        self.begun[number].set_result(Answer(OK, worker="w"))
        await turns()

    def close(self) -> None:
        for task in self.sent:
            task.cancel()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_while_each_worker_has_a_group_the_next_ones_gather(workers: int) -> None:
    """Clients that send one request after the other would else go one by one for ever."""
    rig = Rig(workers)
    for _ in range(workers):
        await rig.send()
    assert len(rig.begun) == workers
    for _ in range(3):
        await rig.send()
    assert len(rig.begun) == workers
    await rig.answer(0)
    assert len(rig.begun) == workers + 1
    rig.close()


async def test_they_gather_for_a_bounded_time() -> None:
    rig = Rig(1)
    await rig.send()
    await rig.send()
    assert len(rig.begun) == 1
    rig.now_s = 2 * MOST_WAIT_S
    await turns()
    assert len(rig.begun) == 2
    rig.close()
