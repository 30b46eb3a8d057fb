"""Parts of the stack die under load."""

import os
import signal
from typing import Literal

import pytest
from support import fronts
from support.load import steady_load
from support.stack import Stack
from support.waiting import eventually

from balancer.load.result import LoadResult

pytestmark = pytest.mark.integration

long = pytest.mark.long


def ways(*always: tuple[str, str]) -> pytest.MarkDecorator:
    """With these front ends and protocols in every run, with the others in the long one."""
    known = [("pick", "grpc"), ("native", "grpc"), ("native", "http"), ("proxy", "grpc"), ("proxy", "http")]
    values = [pytest.param(*way, marks=() if way in always else long) for way in known]
    return pytest.mark.parametrize(("frontend", "protocol"), values)


CLIENTS = 6


def answered_by(result: LoadResult, worker: str) -> int:
    """Requests that a worker answered."""
    if worker not in result.workers:
        return 0
    return int((result.worker == result.workers.index(worker)).sum())


def lost_with_a_balancer(frontend: str) -> int:
    """Requests that may end with it: those that it forwards, and each client has one."""
    return CLIENTS if frontend == "proxy" else 0


@ways(("pick", "grpc"), ("native", "grpc"), ("proxy", "http"))
async def test_a_killed_balancer_costs_no_more_than_what_it_forwards_and_picks_again_when_it_is_back(
    stack: Stack, frontend: str, protocol: Literal["grpc", "http"]
) -> None:
    async with steady_load(stack.url, clients=CLIENTS, protocol=protocol) as load:
        load.mark("dying")
        await stack.balancer.kill()
        load.mark("dead")
        # Envoy places requests by itself meanwhile, over the endpoints that it has.
        await load.more(300, "requests served without a balancer")
        await stack.start_balancer()
        await stack.all_ready()
        await eventually(
            lambda: stack.get("/recent"),
            "picks by the new balancer",
            until=lambda page: page and page["rate_per_s"] > 0 and (page["picked"] > 50),
        )
    # What a client sent while the process was dying may have reached it too.
    dying = len(load.phases()["dying"])
    lost = lost_with_a_balancer(frontend)
    assert load.failures().total() <= lost + (dying if lost else 0)


@ways(("native", "grpc"), ("proxy", "grpc"))
async def test_a_balancer_that_stops_costs_no_request(stack: Stack, protocol: Literal["grpc", "http"]) -> None:
    async with steady_load(stack.url, clients=CLIENTS, protocol=protocol) as load:
        await load.more(100, "requests served")
        await stack.balancer.stop()
        await load.more(100, "requests served without a balancer")
    assert not load.failures()


@fronts.frontend("pick", "proxy", "native")
async def test_a_hung_balancer_costs_no_more_than_what_it_forwards(stack: Stack, frontend: str) -> None:
    async with steady_load(stack.url, clients=CLIENTS) as load:
        os.killpg(stack.balancer.process.pid, signal.SIGSTOP)
        try:
            await load.more(300, "requests served while the balancer hangs")
        finally:
            os.killpg(stack.balancer.process.pid, signal.SIGCONT)
    assert load.failures().total() <= lost_with_a_balancer(frontend)


@fronts.frontend("native", "pick", "proxy")
async def test_a_draining_worker_gets_nothing_new_and_fails_nothing(stack: Stack) -> None:
    leaving = stack.specs[0]
    async with steady_load(stack.url, clients=CLIENTS) as load:
        stack.list_workers(leaving.model_copy(update={"draining": True}), *stack.specs[1:])

        async def idle() -> bool:
            page = await stack.get("/workers")
            worker = next(w for w in page["workers"] if w["worker"] == leaving.name)
            return bool(worker["draining"] and worker["in_flight"] == 0)

        await eventually(idle, "the draining worker has nothing left")
        await stack.tritons[0].stop()
        stack.list_workers(*stack.specs[1:])
        await load.more(200, "requests served by the others")
    assert not load.failures()


@ways(("pick", "grpc"), ("proxy", "http"))
async def test_a_triton_that_stops_costs_no_request(stack: Stack, protocol: Literal["grpc", "http"]) -> None:
    """As a pod that is deleted before discovery says so: SIGTERM, with a queue at every worker."""
    async with steady_load(stack.url, clients=64, protocol=protocol) as load:
        await eventually(lambda: load.finished > 300, "requests served")
        stack.tritons[2].process.terminate()
        await stack.tritons[2].wait()
        await load.more(200, "requests served by the others")
    assert not load.failures()


async def unconnected(stack: Stack, endpoint: str) -> bool:
    """Whether Envoy has no connection to that worker."""
    return f"triton_grpc::{endpoint}::cx_active::0" in await stack.clusters()


@fronts.frontend("native", "pick", "proxy")
async def test_a_killed_triton_costs_no_more_than_what_was_there_and_is_used_again(stack: Stack, frontend: str) -> None:
    """What executed there is gone, and what waited in its queue as well: neither is sent a second time."""
    victim, clients = stack.tritons[0], 48

    async def why_not() -> str | None:
        page = await stack.get("/explain?model=emulated_tft")
        return next(worker["why_not"] for worker in page["workers"] if worker["worker"] == victim.name)

    async with steady_load(stack.url, clients=clients) as load:
        await load.more(300, "requests served")
        load.mark("dying")
        await victim.kill()
        if frontend != "proxy":
            # What is sent on a connection whose end Envoy has not noticed yet may have been executed, for all it knows.
            await eventually(lambda: unconnected(stack, victim.grpc_endpoint), "Envoy knows that the connections ended")
            load.mark("dead")
        await eventually(why_not, "the balancer knows that the worker is gone")
        load.mark("dead")
        await load.more(300, "requests served by the others")
        await stack.start_triton(0)
        await stack.tritons[0].wait_ready()
        await stack.all_ready()
        load.mark("back")
        await load.more(300, "requests served by all")
    phases = load.phases()
    # Nothing fails that was sent when it was dead already, nor what was at the other two.
    assert phases["dead"].ok.all()
    assert load.failures().total() < clients / 2 + len(phases["dying"])
    assert phases["back"].ok.all()
    assert answered_by(phases["back"], victim.name) > 0


@pytest.mark.parametrize("frontend", ["native"])
async def test_an_envoy_that_starts_while_the_balancer_is_away_serves(stack: Stack) -> None:
    """By a bootstrap that is older than the balancer, with the last known endpoints; and by what the balancer says of
    them once it is back."""
    bootstrap = stack.envoy.options
    assert bootstrap.native is not None
    assert bootstrap.native.endpoints is not None
    await stack.balancer.kill()
    await stack.envoy.kill()
    await stack.start_envoy()
    assert stack.envoy.options == bootstrap
    async with steady_load(stack.url, clients=CLIENTS) as load:
        await load.more(100, "requests served without a balancer")
    assert not load.failures()
    await stack.start_balancer()
    await stack.all_ready()
    leaving = stack.specs[0]
    stack.list_workers(leaving.model_copy(update={"draining": True}), *stack.specs[1:])
    await eventually(
        stack.clusters,
        "Envoy knows that the worker drains",
        until=lambda lines: (
            f"triton_grpc::{leaving.grpc_endpoint}::health_flags::/eds_status_draining" in "".join(lines)
        ),
    )
    stack.list_workers(*stack.specs[1:])
    await eventually(
        stack.clusters,
        "Envoy knows that the worker is gone",
        until=lambda lines: leaving.grpc_endpoint not in "".join(lines),
    )
