"""Through a real Envoy: it decides as the router would, and asks nobody."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.native import NativeRig
from support.strangers import FIT, stranger
from support.waiting import eventually

from balancer.native.layouts import Source
from policies import BUILTIN

pytestmark = pytest.mark.integration


async def test_a_stranger_s_policy_decides_inside(rig: NativeRig) -> None:
    policy = stranger(FIT["_in_turn"])
    rig.router.configure(policy, rig.settings)
    assert [await rig.infer() for _ in range(30)] == 10 * ["w0", "w1", "w2"]
    assert rig.balancer.seen == []
    await eventually(lambda: len(rig.all_outcomes()) == 30)
    assert (
        rig.router.directory.policy_of(rig.all_outcomes()["directory"][0], rig.all_outcomes()["decider"][0])
        == policy.name
    )


async def test_what_runs_is_counted_in_with_its_rows(rig: NativeRig) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Any, context: Any) -> Any:
        arrived.set()
        await go.wait()
        return rig.workers[0].answer(request)

    for worker in rig.workers:
        worker.infer = slow
    call = asyncio.create_task(rig.infer())
    await arrived.wait()
    queue = rig.router.fleet.queue
    assert queue.in_flight.sum() == 1
    assert queue.own_rows.sum() == 16
    assert rig.router.state.in_flight == 1
    go.set()
    await call
    await rig.all_ended()
    assert queue.own_rows.sum() == 0


async def test_another_policy_is_in_force_from_the_next_request_on(rig: NativeRig) -> None:
    """On all of Envoy's threads, with requests under way all the time."""
    stop, begun = asyncio.Event(), [(0, "round_robin")]

    async def client() -> None:
        while not stop.is_set():
            await rig.infer()

    async def more() -> None:
        seen = rig.router.next_number
        await eventually(lambda: rig.router.next_number > seen + 20)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for name in ("least_requests", "wlpr", "random", "peak_ewma") * 3:
        await more()
        rig.router.configure(BUILTIN[name](), rig.settings)
        begun.append((rig.router.next_number, name))
    await more()
    stop.set()
    await asyncio.gather(*clients)
    await rig.all_ended()
    outcomes = rig.all_outcomes()
    # Where the machine is busy, somebody may have had the lock for too long.
    outcomes = np.sort(outcomes[outcomes["source"] == Source.BY_POLICY], order="number")
    for (first, name), (beyond, after) in pairwise([*begun, (rig.router.next_number, "")]):
        within = outcomes[(outcomes["number"] >= first) & (outcomes["number"] < beyond)]
        decided = [rig.router.directory.policy_of(int(each["directory"]), int(each["decider"])) for each in within]
        # Some may have been decided about between the swap and this process's look at the next number.
        assert set(decided) <= {name, after}
        assert decided.count(name) > 10
        assert decided == sorted(decided, key=lambda each: each == after)
