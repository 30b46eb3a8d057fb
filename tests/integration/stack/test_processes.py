"""Two balancer processes behind one Envoy: each decides alone, hears of what it decided, and tells the other."""

from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from support.load import steady_load
from support.running import running
from support.stack import Stack, records
from support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


# A process can die behind the first without a loss.
@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["pick", "proxy"])
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    settings = {"log": {"decisions_share": 1.0}, "envoy": {"frontend": request.param}}
    stack = Stack(tmp_path_factory.mktemp("processes"), workers=2, processes=2, settings=settings)
    async with running(stack):
        yield stack


async def matched(stack: Stack, process: int) -> float:
    """Outcomes that a process heard of its own picks."""
    return await stack.metric("balancer_outcomes_total", process, result="matched")


async def in_flight(stack: Stack, process: int) -> float:
    return sum(worker["in_flight"] for worker in (await stack.get("/workers", process))["workers"])


async def test_both_pick_and_each_hears_of_its_own_picks(stack: Stack) -> None:
    async with steady_load(stack.url, clients=8) as load:
        for process in range(2):
            await eventually(
                lambda process=process: matched(stack, process),
                f"process {process} hears of its picks",
                until=lambda found: found > 50,
            )
        # The other's picks count too: all that clients have under way, in either's eyes.
        for process in range(2):
            await eventually(
                lambda process=process: in_flight(stack, process),
                f"process {process} knows what all clients have in flight",
                until=lambda found: found > 4,
            )
            assert await stack.metric("balancer_peers", process) == 1
    assert not load.failures()

    async def idle(process: int) -> bool:
        page = await stack.get("/workers", process)
        return all(worker["in_flight"] == 0 for worker in page["workers"])

    for process in range(2):
        await eventually(lambda process=process: idle(process), f"nothing in flight for process {process}")


@pytest.mark.parametrize("stack", ["pick"], indirect=True)
async def test_a_process_that_dies_is_replaced_and_costs_no_request(stack: Stack) -> None:
    children = psutil.Process(stack.balancer.process.pid).children()
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) == 2
    async with steady_load(stack.url, clients=8) as load:
        workers[0].kill()

        def replaced() -> bool:
            lines = records(stack.directory / "balancer.log")
            return sum(line["message"] == "serving" for line in lines) == 3

        await eventually(replaced, "another process in its place")
        await stack.all_ready()
    assert not load.failures()


@pytest.mark.parametrize("stack", ["pick"], indirect=True)
async def test_all_processes_follow_the_config(stack: Stack) -> None:
    stack.write_config({"name": "wlpr"})

    async def follow(process: int) -> bool:
        return bool((await stack.get("/workers", process))["policy"] == "wlpr")

    for process in range(2):
        await eventually(lambda process=process: follow(process), f"process {process} follows")
