"""`--ray`: the same numbers from a cluster of two real nodes as from one process."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest_asyncio
from support.running import running
from support.waiting import eventually

from balancer.stack.process import LocalProcess, free_ports

RAY = Path(sys.executable).with_name("ray")
SIMULATE = ("simulate", "--scenario", "homogeneous-steady", "--policy", "wlpr", "--policy", "random")
FEW = ("--requests", "200", "--seeds", "2")


@dataclass(slots=True, kw_only=True)
class Node(LocalProcess):
    """Of one CPU. That with a folder is the head; paths of its sockets must be short."""

    title: ClassVar[str] = "a node of Ray"
    head: str
    folder: str = ""

    async def start(self) -> None:
        self._check_not_started()
        agent, client = free_ports(2)
        which = ("--address", self.head)
        if self.folder:
            which = ("--head", "--port", self.head.rpartition(":")[2], "--ray-client-server-port", str(client))
            which = (*which, "--include-dashboard", "false", "--temp-dir", self.folder)
        size = ("--num-cpus", "1", "--object-store-memory", "100000000", "--dashboard-agent-listen-port", str(agent))
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        await self._spawn(str(RAY), "start", "--block", *which, *size, at_our_end="TERM", environment=environment)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[str]:
    """The address of one with two nodes."""
    address = f"127.0.0.1:{free_ports(1)[0]}"

    def nodes() -> int:
        status = subprocess.run(
            [str(RAY), "status", "--address", address], capture_output=True, text=True, timeout=60, check=False
        )
        return status.stdout.count(" node_")

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        head = Node(log_path=tmp_path / "head.log", head=address, folder=folder)
        async with running(head):
            await eventually(lambda: asyncio.to_thread(nodes), "the head is there", until=lambda found: found == 1)
            async with running(Node(log_path=tmp_path / "second.log", head=address)):
                await eventually(lambda: asyncio.to_thread(nodes), "both are there", until=lambda found: found == 2)
                yield address


def simulated(path: Path, *where: str) -> object:
    command = [sys.executable, "-m", "balancer", *SIMULATE, *FEW, "--json", str(path), *where]
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    found = json.loads(path.read_text())
    return {name: value for name, value in found.items() if name != "command"}


def played(cluster: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "support.plays_on_ray", cluster]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100, env=environment)
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


async def test_two_nodes_find_what_one_process_does(cluster: str, tmp_path: Path) -> None:
    saw = await asyncio.to_thread(played, cluster)
    assert saw["nodes"] == 2
    assert saw["told"] == [[done, 6] for done in range(1, 7)]
    assert "ZeroDivisionError" in saw["failure"]
    found = await asyncio.to_thread(simulated, tmp_path / "ray.json", "--ray", cluster)
    assert found == await asyncio.to_thread(simulated, tmp_path / "here.json")
