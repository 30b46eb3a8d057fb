"""A Ray head as a process, and what its dashboard does."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import aiohttp

from balancer.cli.agent import OPTIONS
from balancer.discovery.ray_serve import PATH
from balancer.stack.process import LocalProcess, free_port_range, free_ports
from balancer.stack.stack import REPOSITORY

RAY = REPOSITORY / ".venv" / "ray-serve" / "bin" / "ray"
READY_S = 120.0
MODEL = "emulated"
_POLL_S = 0.05


@dataclass(slots=True, kw_only=True)
class RayCluster(LocalProcess):
    """One node. Its replicas report to `balancers`, and are at all addresses of this machine."""

    title: ClassVar[str] = "Ray"
    balancers: Sequence[str] = ()
    port: int = field(default_factory=lambda: free_ports(1)[0])
    dashboard_port: int = field(default_factory=lambda: free_ports(1)[0])
    proxy_port: int = field(default_factory=lambda: free_ports(1)[0])
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)
    """Ray's: paths of its sockets must be short."""

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def proxy(self) -> str:
        """Serve's own, which chooses by the power of two choices."""
        return f"http://127.0.0.1:{self.proxy_port}"

    async def start(self) -> None:
        self._check_not_started()
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        first = free_port_range(20)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTEST_"))},
            "PATH": f"{RAY.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 19),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        }
        if self.balancers:
            environment["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = "balancer.cli.agent_in_ray:middlewares"
            environment[OPTIONS] = " ".join(f"--balancer {each}" for each in self.balancers)
        where = ("--node-ip-address", "127.0.0.1", "--port", str(self.port), "--temp-dir", self._folder.name)
        client, agent = free_ports(2)
        others = ("--ray-client-server-port", str(client), "--dashboard-agent-listen-port", str(agent))
        dashboard = ("--dashboard-host", "127.0.0.1", "--dashboard-port", str(self.dashboard_port))
        size = ("--num-cpus", "8", "--object-store-memory", "100000000")
        command = (str(RAY), "start", "--head", "--block", *where, *others, *dashboard, *size)
        await self._spawn(*command, at_our_end="TERM", environment=environment)

    async def wait_ready(self) -> None:
        await self.answers(f"{self.dashboard}{PATH}", READY_S)

    async def deploy(self, replicas: int, seconds: Sequence[float], *, at_once: int = 4) -> None:
        """As `configure`, and return once that is in force and nothing is left of what was before."""
        await self.configure(replicas, seconds, at_once=at_once)
        async with asyncio.timeout(READY_S):
            while not await self._runs(replicas):
                assert self.process.returncode is None, self.log_tail()
                await asyncio.sleep(_POLL_S)

    async def configure(self, replicas: int, seconds: Sequence[float], *, at_once: int = 4) -> None:
        """Ask Serve for so many replicas of the application.

        Args:
            replicas: How many.
            seconds: That a request takes, by the replica's rank; from the first again where there are more.
            at_once: `max_ongoing_requests`.
        """
        deployment = {"name": "EmulatedGpu", "num_replicas": replicas, "max_ongoing_requests": at_once}
        application = {
            "name": MODEL,
            "route_prefix": f"/v2/models/{MODEL}",
            "import_path": "dev.ray_serve.application:emulated_gpu",
            "args": {"seconds": ",".join(map(str, seconds))},
            "deployments": [{**deployment, "ray_actor_options": {"num_cpus": 0}}],
        }
        http = {"host": "0.0.0.0", "port": self.proxy_port}
        asked = {"http_options": http, "applications": [application]}
        async with aiohttp.ClientSession(self.dashboard) as session, session.put(PATH, json=asked) as response:
            assert response.status == 200, await response.text()

    async def _runs(self, replicas: int) -> bool:
        """A new config is in force where the application says so, and not before."""
        return (await self._application()).get("status") == "RUNNING" and len(await self.replicas()) == replicas

    async def _application(self) -> dict[str, Any]:
        async with aiohttp.ClientSession(self.dashboard) as session, session.get(PATH) as response:
            found: dict[str, Any] = (await response.json())["applications"].get(MODEL, {})
        return found

    async def replicas(self) -> list[dict[str, Any]]:
        """Those that run, as Serve shows them."""
        deployments = (await self._application()).get("deployments", {})
        return [each for of in deployments.values() for each in of["replicas"] if each["state"] == "RUNNING"]

    async def stop(self, grace_s: float = 30.0) -> None:
        await LocalProcess.stop(self, grace_s)
        if self._folder is not None:
            self._folder.cleanup()
