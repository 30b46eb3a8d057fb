"""`balancer relay` between real agents and a real balancer: killed under load, drained through, by certificates."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.load import steady_load
from support.running import running
from support.stack import Stack
from support.tls_stack import NAME, TlsStack
from support.waiting import eventually

from balancer.reports.control import drain
from balancer.stack.process import Child, free_ports

pytestmark = pytest.mark.integration


class Rack:
    """Relays in front of a stack, which its agents report to."""

    def __init__(self, stack: Stack, count: int, options: Sequence[str] = ()) -> None:
        self._stack, self._options = stack, options
        stack.reports_to = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        self.relays = [self._new(number) for number in range(count)]

    def _new(self, number: int) -> Child:
        where = ("--listen", self._stack.reports_to[number], "--balancer", self._stack.addresses["listen"]["reports"])
        log_path = self._stack.directory.with_name(f"relay-{number}.log")
        return Child(["relay", *where, *self._options], log_path=log_path)

    async def start(self) -> None:
        await asyncio.gather(*(relay.start() for relay in self.relays))

    async def again(self, number: int) -> None:
        self.relays[number] = self._new(number)
        await self.relays[number].start()

    async def stop(self) -> None:
        await asyncio.gather(*(relay.stop() for relay in self.relays if relay.started))


async def silent(stack: Stack) -> Any:
    """Workers of which the balancer hears nothing."""
    return [worker["worker"] for worker in (await stack.get("/workers"))["workers"] if not worker["ready"]]


async def test_one_relay_of_two_suffices_and_both_may_die_and_come_back(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack", workers=2, patient=False)
    rack = Rack(stack, 2)
    async with running(rack, stack):
        assert await stack.metric("balancer_report_relays") == 2
        assert await stack.metric("balancer_report_streams") == 0
        async with steady_load(stack.url, clients=4) as load:
            await load.more(100, "requests served")
            await rack.relays[0].kill()
            await load.more(100, "requests served by what one relay says")
            assert await silent(stack) == []
            await rack.relays[1].kill()
            await eventually(
                lambda: silent(stack), "nothing is heard of any worker", until=lambda found: len(found) == 2
            )
            await rack.again(0)
            await eventually(lambda: silent(stack), "all are heard of again", until=lambda found: found == [])
            await load.more(100, "requests served again")
        # Where nothing is heard of anybody, Envoy places requests itself.
        assert not load.failures()


async def test_a_worker_is_drained_through_a_relay(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack", workers=2)
    rack, control = Rack(stack, 1), tmp_path / "agent.sock"
    async with running(rack, stack):
        await stack.agents[0].stop()
        stack.agents[0] = stack.new_agent(stack.tritons[0], control=control)
        await stack.agents[0].start()
        await eventually(control.exists, "the agent listens")
        await eventually(lambda: silent(stack), "it reports", until=lambda found: found == [])
        assert await drain(control, 20.0) == ""
        workers = {worker["worker"]: worker for worker in (await stack.get("/workers"))["workers"]}
        assert [workers[f"worker-{number}"]["draining"] for number in (0, 1)] == [True, False]


async def test_agents_relay_and_balancer_know_each_other_by_their_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stack = TlsStack(tmp_path / "stack", authority)
    own, agents = stack.identities["relay"], stack.identities["agent"]
    files = ("--tls-ca", str(authority.file), "--tls-name", NAME)
    listening = ("--listen-tls-cert", str(own.cert), "--listen-tls-key", str(own.key))
    trusting = (*files, *listening, "--listen-tls-ca", str(authority.file))
    rack = Rack(stack, 1, (*trusting, "--tls-cert", str(own.cert), "--tls-key", str(own.key)))
    async with running(rack, stack):
        page: Any = await stack.get("/workers")
        assert [worker["ready"] for worker in page["workers"]] == [True]

        # An agent's certificate makes no relay.
        other = Rack(stack, 1, (*trusting, "--tls-cert", str(agents.cert), "--tls-key", str(agents.key)))
        async with running(other):
            log = other.relays[0].log_path
            words = "the certificate has no subject alternative name spiffe://balancer/relay"
            await eventually(lambda: words in log.read_text(), "it is told why it is refused")
