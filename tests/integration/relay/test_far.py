"""A rack's reports over a link of 50 ms each way that loses one packet in a hundred."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.far_link import AVAILABLE, FarLink, FarProcess
from support.running import running
from support.waiting import eventually

from balancer.discovery.workers import WorkerSpec
from balancer.stack.process import free_ports
from balancer.stack.stack import READY_S, OwnStack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not AVAILABLE, reason="needs root and /dev/net/tun, for a network namespace behind a slow link"),
]

WORKERS = 32


class Balancer(OwnStack):
    """Alone, its reports at the near end of the link."""

    def __init__(self, directory: Path, near: str) -> None:
        listed = [
            WorkerSpec(name=f"worker-{n}", address="127.0.0.1", grpc_port=1 + 2 * n, http_port=2 + 2 * n)
            for n in range(WORKERS)
        ]
        super().__init__(directory, listed=listed, settings={"envoy": {"frontend": "pick"}})
        self.addresses["listen"]["reports"] = f"{near}:{free_ports(1, near)[0]}"
        del self.addresses["envoy"]["ready_after_listener"]  # no Envoy is there

    async def start(self) -> None:
        self.prepare()
        await self.start_balancer()
        await self.balancer.answers(f"{self.admin()}/live", READY_S)

    async def ready(self) -> Any:
        """How many workers are heard of."""
        return sum(worker["ready"] for worker in (await self.get("/workers"))["workers"])

    async def reports(self) -> float:
        return await self.metric("balancer_reports_total", result="accepted")


async def test_workers_far_away_stay_known_over_a_relay(tmp_path: Path) -> None:
    link = FarLink(log_path=tmp_path / "link.log", delay_ms=50, loss=0.01)
    async with running(link):
        balancer = Balancer(tmp_path / "stack", link.near)
        at, target = "127.0.0.1:9102", balancer.addresses["listen"]["reports"]
        relay, agents = (
            FarProcess(log_path=tmp_path / f"far-{arguments[1]}.log", link=link, arguments=arguments)
            for arguments in (
                ("balancer", "relay", "--listen", at, "--balancer", target),
                ("dev.bench.reports", at, str(WORKERS), "0.05"),
            )
        )
        async with running(balancer, relay, agents):
            await eventually(balancer.ready, "all are heard of", until=lambda ready: ready == WORKERS)
            before = await balancer.reports()
            heard = []
            while await balancer.reports() < before + 20 * WORKERS:
                heard.append(await balancer.ready())
                await asyncio.sleep(0.05)
            assert set(heard) == {WORKERS}
            for cause in ("silent", "invalid"):
                assert await balancer.metric("balancer_report_streams_ended_total", cause=cause) == 0
            assert await balancer.metric("balancer_report_relays") == 1
