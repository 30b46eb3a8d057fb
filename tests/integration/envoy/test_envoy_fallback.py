"""Through a real Envoy: what it does by itself while the balancer is gone, hangs or talks nonsense."""

import asyncio
from pathlib import Path

import grpc
import pytest
from support.envoy_fakes import FakeBalancer, Rig, StoppableBalancer, go_on
from support.running import running
from support.waiting import PATIENCE_S, eventually

from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.stack.process import free_ports

pytestmark = pytest.mark.integration
HEALTHY = r"cluster\.balancer\.membership_healthy"


def always_first(rig: Rig) -> None:
    for balancer in rig.balancers:
        balancer.respond = lambda _: go_on(rig.workers[0].grpc_endpoint)


async def until_served_by(rig: Rig, *names: str) -> None:
    """Return once ten requests in a row went to these workers only."""
    await eventually(lambda: rig.ends(10), until=lambda ends: ends <= set(names))


async def test_a_balancer_that_dies_costs_no_request_and_is_asked_again(rig: Rig) -> None:
    always_first(rig)
    assert {await rig.infer() for _ in range(10)} == {"w0"}
    (balancer,) = rig.balancers
    await balancer.stop()
    assert {await rig.infer() for _ in range(30)} == {"w0", "w1", "w2"}
    # Back on the same port, it says nothing of endpoints yet: Envoy keeps what it had.
    again = FakeBalancer(port=balancer.port)
    rig.balancers = [again]
    always_first(rig)
    await again.start()
    try:
        await until_served_by(rig, "w0")
        rig.announce(w2="draining")
        await eventually(rig.health, until=lambda states: "draining" in states[rig.workers[2].grpc_endpoint])
    finally:
        await again.stop()


async def test_a_hung_balancer_is_left_alone_until_it_answers(tmp_path: Path) -> None:
    balancer = StoppableBalancer()
    rig = Rig(tmp_path, balancers=[balancer])
    rig.options = BootstrapOptions()
    async with rig.running():
        always_first(rig)
        await until_served_by(rig, "w0")
        balancer.going.clear()
        assert await rig.infer() in {"w0", "w1", "w2"}
        await eventually(lambda: rig.statistic(HEALTHY), until=lambda value: value == 0)
        waits = r"http\.inference\.ext_proc\.message_timeouts"
        before = await rig.statistic(waits)
        assert {await rig.infer() for _ in range(30)} == {"w0", "w1", "w2"}
        assert await rig.statistic(waits) == before
        balancer.going.set()
        await until_served_by(rig, "w0")


async def test_balancers_at_unix_sockets(tmp_path: Path) -> None:
    """Picks, endpoints, health and outcomes, beside one at a port; what a process does is the same as over TCP."""
    rig = Rig(tmp_path, balancers=[FakeBalancer(socket=tmp_path / "0.sock"), FakeBalancer()])
    async with rig.running():
        for process, balancer in enumerate(rig.balancers):
            picks = go_on(rig.workers[process].grpc_endpoint, process=str(process), number="7")
            balancer.respond = lambda _, picks=picks: picks
        assert {await rig.infer() for _ in range(30)} == {"w0", "w1"}
        for process, balancer in enumerate(rig.balancers):
            outcome = await asyncio.wait_for(balancer.outcomes.get(), PATIENCE_S)
            assert (outcome.number, outcome.upstream) == (7, rig.workers[process].grpc_endpoint)
        # The endpoints come over the socket too, and Envoy notices its end.
        await rig.balancers[1].stop()
        await until_served_by(rig, "w0")
        rig.announce(w0="draining", w1="draining")
        rig.balancers[0].respond = lambda _: go_on()
        await until_served_by(rig, "w2")
        await rig.balancers[0].stop()
        await eventually(lambda: rig.statistic(HEALTHY), until=lambda value: value == 0)
        assert await rig.infer() == "w2"


async def test_envoy_can_start_first(tmp_path: Path) -> None:
    balancer = FakeBalancer(port=free_ports(1)[0])
    rig = Rig(tmp_path, balancers=[balancer])
    async with rig.running(balancer):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        always_first(rig)
        async with running(balancer):
            await eventually(lambda: rig.ends(10), until=lambda ends: ends == {"w0"})


async def test_a_stopped_process_does_not_keep_the_endpoints_to_itself(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.options = BootstrapOptions()
    process, other = StoppableBalancer(), FakeBalancer(port=free_ports(1)[0])
    rig.balancers = [process, other]
    async with rig.running(other):
        assert {await rig.infer() for _ in range(30)} == {"w0", "w1", "w2"}
        async with running(other):
            process.going.clear()
            rig.announce(w1="draining", w2="draining")
            await until_served_by(rig, "w0")
            assert other.ads.connected == 1


async def test_fallback_spares_workers_that_drain_or_are_unwell(rig: Rig) -> None:
    rig.announce(w1="draining", w2="unhealthy")
    await until_served_by(rig, "w0")
    # However few are left, and none: Envoy does not panic.
    rig.announce(w0="draining", w1="draining", w2="unhealthy")

    await eventually(rig.try_infer, until=lambda end: end == "UNAVAILABLE")
    # A pick is followed all the same: whom not to pick is the balancer's duty.
    rig.balancers[0].respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
    assert await rig.infer() == "w1"
    rig.balancers[0].respond = lambda _: go_on()
    rig.announce()
    await eventually(lambda: rig.ends(30), until=lambda ends: ends == {"w0", "w1", "w2"})


async def test_an_update_that_envoy_refuses_leaves_the_last(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    name, rig.workers[0].address = rig.workers[0].name, "no-address"
    rig.announce()

    async def refused() -> bool:
        return rig.balancers[0].ads.rejections > 0

    await eventually(refused)
    assert any("refused the endpoints" in record.message for record in caplog.records)
    assert {await rig.infer() for _ in range(30)} == {name, "w1", "w2"}
    rig.workers[0].address = "127.0.0.1"
    rig.workers.pop()
    rig.announce()
    await until_served_by(rig, "w0", "w1")
