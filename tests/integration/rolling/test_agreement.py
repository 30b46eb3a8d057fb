"""Two gateways share nothing but the agents' reports: they agree on what hashes tell, and know what the other has in
flight. Balancers, Envoys and all workers are restarted or replaced, one after the other, while clients go on."""

import asyncio
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from support.inputs import input_of
from support.load import steady_load
from support.replicas import Gateways
from support.waiting import eventually

from balancer.cli.drain import STILL_BUSY
from balancer.files.schema import split_address
from balancer.load.result import LoadResult
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import Child

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
