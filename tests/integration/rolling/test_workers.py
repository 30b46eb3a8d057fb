"""All workers are replaced, one after the other, while clients go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.load import steady_load
from support.replicas import Gateways

from balancer.cli.drain import STILL_BUSY
from balancer.load.result import LoadResult
from balancer.stack.process import Child

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

CLIENTS = 2
"""Of each gateway."""


async def drain(gateways: Gateways, worker: str, log_path: Path, *options: str) -> int:
    """`balancer drain` for all balancers; its exit status."""
    arguments = (argument for admin in gateways.admins for argument in ("--balancer", admin))
    command = Child(["drain", worker, *arguments, *options], log_path=log_path)
    await command.start()
    return await command.wait()


def answered(result: LoadResult) -> set[str]:
    """The workers that did."""
    return {result.workers[worker] for worker in result.worker.tolist()}


async def test_a_rolling_update_of_all_workers_fails_no_request(gateways: Gateways, tmp_path: Path) -> None:
    stack, log_path = gateways.stack, tmp_path / "drain.log"
    # The first keeps its name, as a pod of a StatefulSet does; the others get new ones.
    names = [stack.specs[0].name, "new-1", "new-2"]
    async with (
        steady_load(stack.url, clients=CLIENTS) as first,
        steady_load(gateways.second.url, clients=CLIENTS) as second,
    ):
        for number, new in enumerate(names):
            old = stack.specs[number].name
            status = await drain(gateways, old, log_path, "--wait", "--timeout", "60")
            assert status == 0, log_path.read_text()
            for load in (first, second):
                load.mark(f"{old} is drained")
            await stack.tritons[number].stop()
            await stack.agents[number].stop()
            for load in (first, second):
                load.mark("another one starts")
            await stack.replace_worker(number, new)
            await gateways.all_ready()
        for load in (first, second):
            load.mark("rolled")
            await load.more(100, "requests are served")
    for load in (first, second):
        assert not load.failures()
        served = {phase: answered(part) for phase, part in load.phases().items()}
        assert served["rolled"] == set(names)
        for phase, workers in served.items():
            assert phase.removesuffix(" is drained") not in workers, phase


async def test_a_drain_waits_for_what_runs_and_gives_up_in_time(gateways: Gateways, tmp_path: Path) -> None:
    stack, log_path = gateways.stack, tmp_path / "drain.log"
    leaving = stack.specs[1].name
    async with steady_load(stack.url, clients=CLIENTS) as load:
        # An agent that is stopped leaves nobody to say that nothing is left.
        await stack.agents[1].stop()
        assert await drain(gateways, leaving, log_path, "--wait", "--timeout", "1") == STILL_BUSY
        assert "its agent is silent" in log_path.read_text()
        page = await stack.get("/workers")
        assert [each["worker"] for each in page["workers"] if each["drained_by_hand"]] == [leaving]
        assert await stack.metric("balancer_worker_drained", worker=leaving) == 1
        await load.more(50, "requests served by the others")
    assert not load.failures()
